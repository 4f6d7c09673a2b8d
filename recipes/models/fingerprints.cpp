#include "nibble/recipes/models/fingerprints.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/content_hash.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/hub/hub_cache.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/train/run/run_directory.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/tables.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/reinforcement/prompt_records.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

std::string in_quotes(const std::string& text) { return "\"" + text + "\""; }

// config.json and all weights of a model directory, or the one file.
std::vector<fs::path> model_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : list_directory(path)) {
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "config.json")
      files.push_back(entry.path());
  }
  return files;
}

std::string quantization_name(const ModelRecipe& model) {
  return model.quantize ? std::string(quant_type_name(*model.quantize)) : "none";
}

// What the adapter in a directory keeps of its base; null where it keeps nothing.
nlohmann::json read_record(const fs::path& adapter) {
  const fs::path place = adapter / kBaseFile;
  if (!fs::is_regular_file(place)) return nullptr;
  nlohmann::json record = read_json_file(place);
  const auto files = record.find("files");
  if (files == record.end() || !files->is_object()) throw InputError(place.string(), "names no files of the base");
  return record;
}

std::string base_in(const nlohmann::json& record) {
  const std::string trained = record.value("quantize", "none");
  return trained == "none" ? "the base without quantization" : "the base in " + trained;
}

}  // namespace

void add_fingerprints(RunOptions& options, const Recipe& recipe, const std::string& tokenizer,
                      const std::string& data_fingerprint) {
  const fs::path model = recipe.pretrains() ? recipe.model.init : recipe.model.path;
  options.settings["data.fingerprint"] = in_quotes(data_fingerprint);
  if (has_rewards(recipe.objective.type) && recipe.objective.rollout.file.empty()) {
    options.settings["data.records"] = in_quotes(PromptRecords(recipe.data).fingerprint());  // for rewards
  }
  const auto add = [&](const std::string& section, const fs::path& file) {
    options.settings[section + detail::kFingerprint + file.filename().string()] = in_quotes(content_hash(file));
  };
  for (const fs::path& file : model_files(model)) add("model", file);
  const fs::path ends = model / "generation_config.json";  // says where an answer ends
  if (recipe.has_rollouts() && recipe.objective.rollout.file.empty() && fs::exists(ends)) add("model", ends);
  if (recipe.adapter && !recipe.adapter->path.empty()) {
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
      if (const fs::path path = fs::path(recipe.adapter->path) / file; fs::exists(path)) add("adapter", path);
    }
  }
  if (has_reference(recipe.objective)) {
    const bool directory = names_reference_directory(recipe.objective);
    options.settings["objective.reference"] = in_quotes(directory ? "a directory" : recipe.objective.reference);
    if (directory) {
      for (const fs::path& file : model_files(recipe.objective.reference)) add("objective.reference", file);
    }
  }
  if (const std::string& teacher = recipe.objective.teacher_model_name_or_path; !teacher.empty()) {
    for (const fs::path& file : model_files(teacher)) add("objective.teacher_model_name_or_path", file);
  }
  const auto add_scorer = [&](const std::string& section, const std::string& directory) {  // a model or an adapter
    for (const fs::path& file : model_files(directory)) add(section, file);
    if (const fs::path config = fs::path(directory) / "adapter_config.json"; fs::exists(config)) add(section, config);
  };
  const ObjectiveOptions& objective = recipe.objective;
  if (!objective.value_model.empty()) add_scorer("objective.value_model", objective.value_model);
  if (!objective.value_adapter.empty()) add_scorer("objective.value_adapter", objective.value_adapter);
  const std::vector<RewardRecipe> rewards = recipe.all_rewards();
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!rewards[i].path.empty()) add_scorer("rewards[" + std::to_string(i) + "]", rewards[i].path);
  }
  for (const auto& [name, hash] : tokenizer_contents(tokenizer, recipe.data.chat_template)) {
    options.settings["tokenizer" + std::string(detail::kFingerprint) + name] = in_quotes(hash);
  }
  options.settings["model.fingerprint"] = in_quotes(base_fingerprint(model.string()));  // what older checkpoints have
}

fs::path find_base(const fs::path& adapter) {
  const std::string named = read_peft_directory(adapter).options.base_model;
  if (named.empty()) throw UsageError("the adapter does not name its base", "give it with --model", adapter.string());
  fs::path found = find_in_hub(named, kHubModels);
  if (fs::is_directory(found)) return found;
  throw IoError((adapter / "adapter_config.json").string(),
                "names the base " + found.string() + ", which is no directory here",
                "give the directory of the base with --model");
}

void record_base(AdapterCompanions& companions, const ModelRecipe& model) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  std::vector<fs::path> paths = model_files(model.path);
  std::sort(paths.begin(), paths.end());
  for (const fs::path& file : paths) files[file.filename().string()] = content_hash(file);
  nlohmann::ordered_json record = {{"files", files}, {"quantize", quantization_name(model)}};
  if (model.int8()) record["compute_dtype"] = "int8";
  companions.base = record.dump(2) + "\n";
  if (!model.quantize || model.block_size != 64) return;
  std::string& call = companions.bits_and_bytes;
  call = "load_in_4bit=True, bnb_4bit_quant_type=" + in_quotes(quantization_name(model)) +
         ", bnb_4bit_use_double_quant=" + (model.double_quant ? "True" : "False") + ", bnb_4bit_compute_dtype=torch." +
         (model.dtype() == DType::bf16 ? "bfloat16" : "float32");
  if (model.skip_modules) call += ", llm_int8_skip_modules=" + nlohmann::json(*model.skip_modules).dump();
}

bool trained_in_int8(const fs::path& adapter) {
  const fs::path place = adapter / kBaseFile;
  if (!fs::is_regular_file(place)) return false;
  const nlohmann::json record = read_json_file(place);
  return record.is_object() && record.contains("compute_dtype") && record["compute_dtype"] == "int8";
}

OtherBase other_base(const fs::path& adapter, const ModelRecipe& base) {
  const nlohmann::json record = read_record(adapter);
  if (record.is_null()) return {};
  const std::string trained = record.value("quantize", "none");
  if (trained != "none" && is_four_bit(base.path))
    return {};  // a copy of it in 4 bits, whose bytes nobody has recorded
  std::map<std::string, std::string> here;
  for (const fs::path& file : model_files(base.path)) here[file.filename().string()] = content_hash(file);
  for (const auto& [name, hash] : record["files"].items()) {
    const auto found = here.find(name);
    if (found != here.end() && hash == found->second) continue;
    return {"another base than the one in " + base.path + ", where " + name +
                (found == here.end() ? " is missing" : " has other content"),
            ""};
  }
  if (trained == quantization_name(base)) return {};
  return {base_in(record), trained};
}

std::string bases_warning(const std::vector<std::string>& adapters) {
  std::string first;
  nlohmann::json known;
  for (const std::string& adapter : adapters) {
    const nlohmann::json record = read_record(adapter);
    if (record.is_null()) continue;
    if (known.is_null()) {
      known = record;
      first = adapter;
    } else if (record["files"] != known["files"]) {
      return "warning: " + adapter + " was trained on another base than " + first +
             ": what is made of both may fit neither";
    } else if (base_in(record) != base_in(known)) {
      return "warning: " + adapter + " was trained on " + base_in(record) + ", " + first + " on " + base_in(known);
    }
  }
  return "";
}

std::string base_warning(const fs::path& adapter, const ModelRecipe& base, const std::string& setting,
                         const std::string& key) {
  const OtherBase other = other_base(adapter, base);
  if (other.what.empty()) return "";
  return "warning: " + (key.empty() ? "" : key + ": ") + "this adapter was trained on " + other.what +
         (other.quantize.empty() ? "" : "; " + setting + other.quantize + " gives that");
}

}  // namespace nibble
