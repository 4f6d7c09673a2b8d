#include "nibble/recipes/config/convert_recipe.h"

#include <array>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/foreign_keys.h"
#include "nibble/recipes/config/recipe_fields.h"

namespace nibble {

namespace {

using detail::Json;
using detail::RecipeField;

enum class Tool : uint8_t { axolotl, llama_factory, trl };

struct Default {
  const char* key;    // the tool's
  const char* value;  // JSON
};

// Of what counts in the result and is another number here. Axolotl's schema.py; LLaMA-Factory's hparams and TRL's
// SFTConfig, which are Transformers' TrainingArguments with some of their own.
constexpr std::array<Default, 5> kAxolotl = {{{"num_epochs", "1"},
                                              {"sequence_len", "512"},
                                              {"gradient_accumulation_steps", "1"},
                                              {"micro_batch_size", "1"},
                                              {"sample_packing", "false"}}};
constexpr std::array<Default, 8> kLlamaFactory = {{{"learning_rate", "5e-5"},
                                                   {"num_train_epochs", "3"},
                                                   {"per_device_train_batch_size", "8"},
                                                   {"lr_scheduler_type", "\"linear\""},
                                                   {"cutoff_len", "2048"},
                                                   {"packing", "false"},
                                                   {"lora_rank", "8"},
                                                   {"lora_target", "\"all\""}}};
constexpr std::array<Default, 10> kTrl = {{{"learning_rate", "2e-5"},
                                           {"num_train_epochs", "3"},
                                           {"per_device_train_batch_size", "8"},
                                           {"lr_scheduler_type", "\"linear\""},
                                           {"max_length", "1024"},
                                           {"packing", "false"},
                                           {"lora_r", "16"},
                                           {"lora_alpha", "32"},
                                           {"lora_dropout", "0.05"},
                                           {"lora_target_modules", "[\"q_proj\", \"v_proj\"]"}}};

std::span<const Default> defaults_of(Tool tool) {
  if (tool == Tool::axolotl) return kAxolotl;
  if (tool == Tool::llama_factory) return kLlamaFactory;
  return kTrl;
}

// LLaMA-Factory's templates that are built in here under the same name, with the same texts.
constexpr std::string_view kSameTemplates[] = {"chatml", "gemma", "gemma2", "llama3"};

// Keys that mean the same in all tools and are not in the table of keys that people mistake for ours.
constexpr std::pair<std::string_view, std::string_view> kSameMeaning[] = {
    {"lora_alpha", "adapter.lora_alpha"},
    {"lora_dropout", "adapter.lora_dropout"},
    {"use_dora", "adapter.use_dora"},
    {"use_rslora", "adapter.use_rslora"},
    {"weight_decay", "optimizer.weight_decay"},
    {"warmup_ratio", "optimizer.warmup_ratio"},
    {"warmup_steps", "optimizer.warmup_steps"},
    {"max_grad_norm", "train.max_grad_norm"},
    {"seed", "train.seed"},
    {"max_length", "data.max_length"},
    {"optimizer", "optimizer.type"},
};

std::pair<std::string, std::string> section_and_name(const std::string& key) {
  const size_t dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

class Converter {
 public:
  Converter(const Json& theirs, Tool tool) : theirs_(theirs), tool_(tool) {}

  ConvertedRecipe convert();

 private:
  const Json* find(const char* key) const {
    const auto found = theirs_.find(key);
    return found == theirs_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const char* key) const {
    const Json* value = find(key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  bool is_on(const char* key) const { return find(key) != nullptr && *find(key) == true; }
  void note(const std::string& key, const std::string& what) { made_.notes.push_back(key + ": " + what); }
  /// Sets our key, unless its row of the table refuses the value.
  void set(const std::string& theirs, const std::string& ours, const Json& value);
  void convert_adapter();
  void convert_data();
  void convert_source(const std::string& key, const Json& source);
  void convert_key(const std::string& key, const Json& value);
  bool convert_special(const std::string& key, const Json& value);

  const Json& theirs_;
  const Tool tool_;
  bool adapts_ = false;
  Json root_ = Json::object();
  Json files_ = Json::array();
  ConvertedRecipe made_;
};

void Converter::set(const std::string& theirs, const std::string& ours, const Json& value) {
  for (const RecipeField& field : detail::recipe_fields()) {
    if (field.name != ours) continue;
    Recipe scratch;
    scratch.adapter.emplace();
    try {
      field.read(scratch, value, "");
    } catch (const Error& error) {
      return note(theirs, value.dump() + " has no counterpart: " + ours + " " + error.what());
    }
    const auto [section, name] = section_and_name(ours);
    Json& place = root_[section][name];
    if (place.is_object()) {
      place.update(value);
    } else {
      place = value;
    }
  }
}

// What is trained, and in which form the base is held.
void Converter::convert_adapter() {
  const char* key = tool_ == Tool::axolotl ? "adapter" : tool_ == Tool::trl ? "use_peft" : "finetuning_type";
  const std::string kind = tool_ == Tool::trl ? (is_on(key) ? "lora" : "full") : text(key);
  adapts_ = kind == "lora" || kind == "qlora" || (tool_ == Tool::llama_factory && kind.empty());
  if (adapts_) {
    set(key, "adapter.type", "lora");
  } else if (!kind.empty() && kind != "full") {
    note(key, "\"" + kind + "\" has no counterpart: LoRA, or all weights");
  }
  const Json* bits = find("quantization_bit");
  if (is_on("load_in_4bit") || kind == "qlora" || (bits != nullptr && *bits == 4)) {
    set("load_in_4bit", "model.quantize", text("bnb_4bit_quant_type") == "fp4" ? "fp4" : "nf4");
  }
  if (is_on("load_in_8bit")) note("load_in_8bit", "has no counterpart: 16 bits, or 4 bits with model.quantize");
  if (bits != nullptr && *bits != 4) note("quantization_bit", bits->dump() + " has no counterpart: 4 bits or none");
}

void Converter::convert_source(const std::string& key, const Json& source) {
  if (source.is_string()) return files_.push_back(source);
  if (!source.is_object() || !source.contains("path") || !source["path"].is_string()) {
    return note(key, source.dump() + " has no counterpart: name files in data.train");
  }
  std::string path = source["path"];
  for (const auto& [name, value] : source.items()) {
    const std::string full = key + "." + name;
    if (name == "path" || value.is_null()) continue;
    if (name == "data_files" && value.is_string()) {
      path = value;
    } else if (name == "type" && value.is_string()) {
      const std::string type = value, format = value_for_foreign(type);
      set(full, "data.format", type == "completion" ? "text" : format.empty() ? type : format);
    } else if (name == "field_messages" || name == "field_instruction" || name == "field_output" || name == "field") {
      const std::string ours = name == "field" ? "text" : name.substr(6);
      set(full, "data.fields", {{ours, value}});
    } else if (name != "ds_type") {
      note(full, "has no counterpart");
    }
  }
  files_.push_back(path);
}

void Converter::convert_data() {
  if (const Json* datasets = find("datasets")) {
    if (datasets->is_array()) {
      for (const Json& source : *datasets) convert_source("datasets", source);
    } else {
      convert_source("datasets", *datasets);
    }
  }
  if (const Json* name = find("dataset_name")) convert_source("dataset_name", *name);
  const std::string folder = text("dataset_dir").empty() ? "data" : text("dataset_dir");
  std::istringstream names(text("dataset"));
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(0, name.find_first_not_of(' '));
    files_.push_back(folder + "/" + name + ".json");
    note("dataset", "\"" + name + "\" is taken for the file " + files_.back().get<std::string>() + "; look it up in " +
                        folder + "/dataset_info.json");
  }
  if (!files_.empty()) set("datasets", "data.train", files_.size() == 1 ? files_.front() : files_);
  if (files_.empty()) note("data.train", "is missing: name the data files");
  // All but Axolotl cut longer samples.
  const std::string strategy = tool_ == Tool::axolotl ? text("excess_length_strategy") : "truncate";
  set("excess_length_strategy", "data.truncate",
      strategy == "truncate" ? "cut"
      : strategy == "raise"  ? "error"
                             : "drop");
}

// Whether `key` has a meaning of its own; it is converted then.
bool Converter::convert_special(const std::string& key, const Json& value) {
  static constexpr std::string_view kDone[] = {
      "adapter",      "use_peft",         "finetuning_type",     "load_in_4bit",
      "load_in_8bit", "quantization_bit", "bnb_4bit_quant_type", "datasets",
      "dataset_name", "dataset",          "dataset_dir",         "stage"};
  if (key == "stage" && value != "sft" && value != "pt")
    note(key, value.dump() + " has no counterpart: the next token is trained");
  if (key == "excess_length_strategy" || std::ranges::count(kDone, key) > 0) return true;
  const auto whole = [&] { return value.is_number_integer(); };
  if (key == "max_steps") {
    if (whole() && value > 0) set(key, "train.steps", value);
  } else if (key == "val_set_size" || key == "val_size") {
    if (value.is_number() && value < 1) {
      set(key, "data.eval_fraction", value);
    } else {
      note(key, "a number of samples has no counterpart: give data.eval_fraction a share");
    }
  } else if (key == "gradient_checkpointing") {
    set(key, "train.gradient_checkpointing", value == false ? "none" : "block");
  } else if (key == "bf16" || key == "fp16") {
    if (value == true || value == "auto" || value == "full") set(key, "model.compute_dtype", "bf16");
    if (key == "fp16" && value == true) note(key, "bf16 is used");
  } else if (key == "lora_target_linear") {
    if (value == true) set(key, "adapter.target_modules", "all-linear");
  } else if (key == "lora_target" && value.is_string()) {
    Json modules = Json::array();
    std::istringstream names(value.get<std::string>());
    for (std::string name; std::getline(names, name, ',');) modules.push_back(name.substr(name.find_first_not_of(' ')));
    set(key, "adapter.target_modules", value == "all" ? Json("all-linear") : modules);
  } else if (const std::string ours = key_for_foreign(key); ours == "train.eval_every" || ours == "train.save_every") {
    if (key.ends_with("steps") && whole()) return false;
    if (!key.ends_with("strategy") || (value != "steps" && value != "no"))
      note(key, value.dump() + " has no counterpart: give " + ours + " a number of steps, or a time");
  } else if (key == "resume_from_checkpoint" || key == "auto_resume_from_checkpoints") {
    if (value.is_string()) note(key, "another tool's checkpoint cannot be continued");
  } else if (key == "dataset_text_field") {
    if (value != "text") set(key, "data.fields", {{"text", value}});
  } else if (key == "template" && std::ranges::count(kSameTemplates, text("template")) > 0) {
    set(key, "data.template", value);
  } else if (key == "template") {
    note(key, value.dump() + " is not taken over: the model's own chat template is used, or data.template");
  } else {
    return false;
  }
  return true;
}

void Converter::convert_key(const std::string& key, const Json& value) {
  if (value.is_null() || convert_special(key, value)) return;
  std::string ours = key_for_foreign(key);
  for (const auto& [name, same] : kSameMeaning) {
    if (name == key) ours = same;
  }
  if (ours.empty()) return note(key, "has no counterpart");
  if (ours.starts_with("adapter.") && !adapts_) return note(key, "there is no adapter");
  const std::string word = value.is_string() ? value_for_foreign(value.get<std::string>()) : "";
  set(key, ours, word.empty() ? value : Json(word));
}

ConvertedRecipe Converter::convert() {
  static constexpr const char* kNames[] = {"Axolotl", "LLaMA-Factory", "TRL"};
  made_.tool = kNames[static_cast<int>(tool_)];
  root_["model"] = Json::object();
  convert_adapter();
  convert_data();
  std::string written;
  const Json* steps = find("max_steps");
  const bool has_steps = steps != nullptr && steps->is_number_integer() && *steps > 0;
  for (const auto& [key, value] : theirs_.items()) {
    const bool is_epochs = key == "num_epochs" || key == "num_train_epochs";
    if (!(is_epochs && has_steps)) convert_key(key, value);
  }
  for (const Default& one : defaults_of(tool_)) {
    const std::string ours = key_for_foreign(one.key);
    const std::string key = ours.empty() ? one.key : ours;
    const bool of_adapter = key.starts_with("adapter.") || std::string_view(one.key).starts_with("lora_");
    if ((of_adapter && !adapts_) || (key == "train.epochs" && has_steps)) continue;
    bool is_given = false;
    for (const auto& [name, value] : theirs_.items()) {
      is_given =
          is_given || (!value.is_null() && (name == one.key || (!ours.empty() && key_for_foreign(name) == ours)));
    }
    if (is_given) continue;
    convert_key(one.key, Json::parse(one.value));
    written += (written.empty() ? "" : ", ") + std::string(one.key) + "=" + one.value;
  }
  if (adapts_ && tool_ == Tool::llama_factory && find("lora_alpha") == nullptr && root_["adapter"].contains("r")) {
    root_["adapter"]["lora_alpha"] = 2 * root_["adapter"]["r"].get<int64_t>();
    written += ", lora_alpha=2 * lora_rank";
  }
  const Json data = root_.value("data", Json::object());
  if (!data.contains("eval") && !data.contains("eval_fraction")) {
    for (const char* key : {"train.eval_every", "train.early_stop", "output.keep_best"}) {
      const auto [section, name] = section_and_name(key);
      if (!root_.contains(section) || root_[section].erase(name) == 0) continue;
      note(key, "is left out, there is nothing to evaluate on: give it with data.eval or data.eval_fraction");
    }
  }
  if (adapts_ && tool_ == Tool::trl && find("lora_target_modules") == nullptr) {
    note("lora_target_modules",
         "PEFT's default depends on the type of model: q_proj and v_proj are that of llama, mistral, qwen and gemma; "
         "look up another in PEFT's TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING");
  }
  if (!written.empty()) made_.notes.push_back("written out as " + made_.tool + "'s defaults: " + written);
  const Json output = root_.value("output", Json::object());
  if (!output.contains("dir")) note("output.dir", "is missing: name a directory to write to");
  Json ordered = Json::object();
  for (const char* section : {"model", "adapter", "data", "train", "optimizer", "output"}) {
    if (root_.contains(section)) ordered[section] = root_[section];
  }
  made_.text = ordered.dump(2) + "\n";
  return std::move(made_);
}

}  // namespace

ConvertedRecipe convert_recipe(const std::string& text, const std::string& place) {
  const Json theirs = detail::parse_settings(text, place);
  const auto has = [&](const char* key) { return theirs.contains(key); };
  if (has("base_model")) return Converter(theirs, Tool::axolotl).convert();
  if (!has("model_name_or_path")) {
    throw UsageError("is a configuration of no tool that is known",
                     "Axolotl's has base_model, LLaMA-Factory's and TRL's have model_name_or_path", place);
  }
  const bool llama_factory = has("stage") || has("finetuning_type") || has("cutoff_len") || has("do_train");
  return Converter(theirs, llama_factory ? Tool::llama_factory : Tool::trl).convert();
}

}  // namespace nibble
