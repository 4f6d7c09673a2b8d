#include "nibble/recipes/fingerprints.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/content_hash.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/train/run/run_directory.h"
#include "nibble/quant/tables.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/reinforcement/prompt_records.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

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

}  // namespace

void add_fingerprints(RunOptions& options, const Recipe& recipe, const std::string& tokenizer,
                      const std::string& data_fingerprint) {
  const fs::path model = recipe.pretrains() ? recipe.model.init : recipe.model.path;
  options.settings["data.fingerprint"] = quoted(data_fingerprint);
  if (recipe.is_reinforcement() && recipe.objective.rollout.file.empty()) {
    options.settings["data.records"] = quoted(PromptRecords(recipe.data).fingerprint());  // for rewards
  }
  const auto add = [&](const std::string& section, const fs::path& file) {
    options.settings[section + detail::kFingerprint + file.filename().string()] = quoted(content_hash(file));
  };
  for (const fs::path& file : model_files(model)) add("model", file);
  if (recipe.adapter && !recipe.adapter->path.empty()) {
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
      if (const fs::path path = fs::path(recipe.adapter->path) / file; fs::exists(path)) add("adapter", path);
    }
  }
  if (has_reference(recipe.objective)) {
    const bool directory = names_reference_directory(recipe.objective);
    options.settings["objective.reference"] = quoted(directory ? "a directory" : recipe.objective.reference);
    if (directory) {
      for (const fs::path& file : model_files(recipe.objective.reference)) add("objective.reference", file);
    }
  }
  for (const auto& [name, hash] : tokenizer_contents(tokenizer, recipe.data.chat_template)) {
    options.settings["tokenizer" + std::string(detail::kFingerprint) + name] = quoted(hash);
  }
  options.settings["model.fingerprint"] = quoted(base_fingerprint(model.string()));  // what older checkpoints have
}

std::string base_record(const ModelRecipe& model) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  std::vector<fs::path> paths = model_files(model.path);
  std::sort(paths.begin(), paths.end());
  for (const fs::path& file : paths) files[file.filename().string()] = content_hash(file);
  const std::string held = model.quantize ? std::string(quant_type_name(*model.quantize)) : "none";
  return nlohmann::ordered_json{{"files", files}, {"quantize", held}}.dump(2) + "\n";
}

std::string other_base(const fs::path& adapter, const fs::path& base) {
  const fs::path place = adapter / kBaseFile;
  if (!fs::is_regular_file(place)) return "";
  const nlohmann::json record = read_json_file(place);
  const auto files = record.find("files");
  if (files == record.end() || !files->is_object()) throw InputError(place.string(), "names no files of the base");
  const bool quantized = read_json_file(base / "config.json").contains("quantization_config");
  if (const std::string held = record.value("quantize", "none"); held != "none") {
    if (quantized) return "";  // a copy of it in 4 bits, whose bytes nobody has recorded
    const std::string copy = base.string() + "-" + held;
    return "the base in " + held +
           ", this merges it into the 16-bit one; to merge into what it was trained on: " + "nibble quantize --model " +
           base.string() + " --type " + held + " --out " + copy + ", then merge with --model " + copy;
  }
  std::map<std::string, std::string> here;
  for (const fs::path& file : model_files(base)) here[file.filename().string()] = content_hash(file);
  for (const auto& [name, hash] : files->items()) {
    const auto found = here.find(name);
    if (found != here.end() && hash == found->second) continue;
    return "another base than the one in " + base.string() + ", where " + name +
           (found == here.end() ? " is missing" : " has other content");
  }
  return "";
}

}  // namespace nibble
