#include "nibble/recipes/config/conversion/convert_recipe.h"

#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/chat/chat_template.h"
#include "nibble/recipes/config/conversion/foreign_data.h"
#include "nibble/recipes/config/conversion/foreign_defaults.h"
#include "nibble/recipes/config/conversion/foreign_objective.h"
#include "nibble/recipes/config/foreign_keys.h"

namespace nibble {

namespace {

using detail::Json;
using detail::RecipeField;
using detail::section_and_name;
using detail::Tool;

// Converted with other keys, or of no meaning without them.
constexpr std::string_view kDone[] = {
    "adapter",  "use_peft",      "finetuning_type", "load_in_4bit",        "load_in_8bit",
    "datasets", "test_datasets", "dataset_name",    "pretraining_dataset", "quantization_type",
    "dataset",  "dataset_dir",   "stage",           "bnb_4bit_quant_type", "quantization_bit",
    "rl",       "reward_model",  "pissa_iter",      "disable_dropout",     "excess_length_strategy"};

// LLaMA-Factory's templates that are built in here under the same name, with the same texts.
constexpr std::string_view kSameTemplates[] = {"chatml", "gemma", "gemma2", "llama3"};

class Converter {
 public:
  Converter(Json theirs, Tool tool, ObjectiveType objective)
      : theirs_(std::move(theirs)), tool_(tool), objective_(objective) {}

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
  bool has_prompts() const { return has_rewards(objective_); }
  std::string objective() const { return std::string(objective_type_name(objective_)); }
  bool turns_dropout_off() const;
  bool packs() const;
  std::string key_of(const std::string& key) const { return detail::recipe_key(key, objective_); }
  /// Sets our key, unless its row of the table refuses the value.
  void set(const std::string& theirs, const std::string& ours, const Json& value);
  void convert_adapter();
  void convert_objective();
  bool convert_for_objective(const std::string& key, const Json& value);
  void convert_loss_type(const std::string& key, const Json& value);
  void convert_likelihood(const std::string& key, const Json& value);
  void finish_objective();
  void convert_data();
  void convert_template(const std::string& key, const Json& value);
  void convert_trained_tokens();
  bool convert_schedule(const std::string& key, const Json& value);
  void finish_schedule();
  void note_defaults();
  void convert_key(const std::string& key, const Json& value);
  bool convert_special(const std::string& key, const Json& value);

  const Json theirs_;
  const Tool tool_;
  const ObjectiveType objective_;
  bool adapts_ = false;
  Json likelihood_;                // the weight of the chosen answers' own loss
  std::set<std::string> refused_;  // our keys that a value of the tool's was given for, which they do not take
  std::pair<std::string, Json> min_lr_share_;  // the tool's key, and the share of the learning rate that it ends with
  Json root_ = Json::object();
  ConvertedRecipe made_;
};

void Converter::set(const std::string& theirs, const std::string& ours, const Json& value) {
  for (const RecipeField& field : detail::recipe_fields()) {
    if (field.name != ours) continue;
    Recipe scratch;
    scratch.adapter.emplace();
    scratch.objective.type = objective_;
    try {
      field.read(scratch, value, "");
    } catch (const Error& error) {
      // PyYAML reads 1e-4 as text, which the tools' parsers take as a number.
      const Json number = value.is_string() ? Json::parse(value.get<std::string>(), nullptr, false) : Json();
      if (number.is_number()) return set(theirs, ours, number);
      refused_.insert(ours);
      return note(theirs, value.dump() + " has no counterpart: " + ours + " " + error.what());
    }
    const auto [section, name] = section_and_name(ours);
    Json& place = section == ours ? root_[ours] : root_[section][name];  // rewards are a list
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
    note(key, "\"" + kind + "\" has no counterpart: the recipe trains all weights; for LoRA give it adapter.type=lora");
  }
  const Json* bits = find("quantization_bit");
  if (is_on("load_in_4bit") || kind == "qlora" || (bits != nullptr && *bits == 4)) {
    set("load_in_4bit", "model.quantize",
        text("bnb_4bit_quant_type") + text("quantization_type") == "fp4" ? "fp4" : "nf4");
  }
  if (is_on("load_in_8bit")) note("load_in_8bit", "has no counterpart: 16 bits, or 4 bits with model.quantize");
  if (bits != nullptr && *bits != 4) note("quantization_bit", bits->dump() + " has no counterpart: 4 bits or none");
}

void Converter::convert_data() {
  const detail::ForeignData data = detail::foreign_data(theirs_, tool_, objective_);
  for (const auto& [key, what] : data.notes) note(key, what);
  if (!data.format.empty()) set("datasets.type", "data.format", data.format);
  if (!data.fields.empty()) set("datasets", "data.fields", data.fields);
  if (data.on_prompt) set("datasets.train_on_inputs", "data.train_on_prompt", *data.on_prompt);
  const auto one_or_all = [](const auto& files) { return files.size() == 1 ? Json(files.front()) : Json(files); };
  if (!data.train.empty()) set("datasets", "data.train", one_or_all(data.train));
  if (data.train.empty()) note("data.train", "is missing: name the data files");
  if (!data.eval.empty() && !has_prompts()) set("eval_dataset", "data.eval", one_or_all(data.eval));
  // All but Axolotl cut longer samples, but for those of which the end counts.
  std::string strategy = tool_ == Tool::axolotl ? text("excess_length_strategy") : "truncate";
  if (has_prompts() || (objective_ == ObjectiveType::reward && tool_ == Tool::trl)) strategy = "drop";
  set("excess_length_strategy", "data.truncate",
      strategy == "truncate" ? "cut"
      : strategy == "raise"  ? "error"
                             : "drop");
}

// LLaMA-Factory shows all records with its template, Axolotl conversations alone.
void Converter::convert_template(const std::string& key, const Json& value) {
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  const std::string format = root_["data"].value("format", "");
  const std::vector<std::string> builtin = builtin_chat_template_names();
  const bool is_file = key != "template" && (name.ends_with(".jinja") || name.ends_with(".j2"));
  if (name == "tokenizer_default" || (name == "jinja" && find("chat_template_jinja") != nullptr)) return;
  if (tool_ == Tool::axolotl && format == "alpaca") {
    note(key, "is left out: Axolotl shows only conversations with it");
  } else if (is_file || (key == "template" ? std::ranges::count(kSameTemplates, name) > 0
                                           : key == "chat_template" && std::ranges::count(builtin, name) > 0)) {
    set(key, "data.template", value);
  } else {
    note(key, value.dump() +
                  " is not taken over: name one with data.template, or conversations are shown with the "
                  "model's own and instructions with Alpaca's prompt");
  }
}

// TRL trains all tokens, unless one of two keys says otherwise. Where neither is there it trains no prompts that have a
// completion, which only the data tell.
void Converter::convert_trained_tokens() {
  if (tool_ != Tool::trl || objective_ != ObjectiveType::sft) return;
  const bool on_answers = is_on("assistant_only_loss") || is_on("completion_only_loss");
  set("completion_only_loss", "data.train_on_prompt", !on_answers);
  if (!on_answers && find("completion_only_loss") == nullptr) {
    note(
        "data.train_on_prompt",
        "is true, because TRL trains all tokens of conversations; where data have prompt and completion, it trains the "
        "completion: leave the key out for these");
  }
}

// LLaMA-Factory packs where one of its two keys says so; where packing is not there, in pretraining.
bool Converter::packs() const {
  return is_on("neat_packing") || is_on("packing") || (find("packing") == nullptr && text("stage") == "pt");
}

// What Transformers' schedules make of their keys.
bool Converter::convert_schedule(const std::string& key, const Json& value) {
  const std::string schedule = text("lr_scheduler_type") + text("lr_scheduler");
  const std::string ours = key_of(key);
  if (ours == "optimizer.warmup_steps" || ours == "optimizer.warmup_ratio") {
    const Json* steps = find("warmup_steps");
    const bool is_share = value.is_number() && value > 0 && value < 1;
    if (schedule == "constant") {
      if (value != 0) note(key, "is left out: the schedule constant does not warm up, constant_with_warmup does");
    } else if (key == "warmup_ratio" && steps != nullptr && steps->is_number() && *steps > 0) {
      note(key, "is left out: warmup_steps goes before it");
    } else {
      set(key, is_share ? "optimizer.warmup_ratio" : ours, value);
    }
  } else if (ours == "optimizer.betas") {
    const auto beta = [&](const char* one, double otherwise) {
      return find(one) == nullptr ? Json(otherwise) : *find(one);
    };
    set(key, ours, Json::array({beta("adam_beta1", 0.9), beta("adam_beta2", 0.999)}));
  } else if (key == "cosine_min_lr_ratio") {
    if (!schedule.empty() && schedule != "cosine") {
      note(key, "is left out: it counts with the schedule cosine alone");
    } else {
      min_lr_share_ = {key, value};
    }
  } else if (key == "lr_scheduler_kwargs" && value.is_object()) {
    for (const auto& [name, number] : value.items()) {
      if (name == "min_lr_rate") {
        min_lr_share_ = {key + "." + name, number};
      } else if (name == "min_lr") {
        set(key + "." + name, "optimizer.min_lr", number);
      } else {
        note(key + "." + name, number.dump() + " has no counterpart");
      }
    }
  } else {
    return false;
  }
  return true;
}

// The learning rate is known when all keys are.
void Converter::finish_schedule() {
  const auto& [key, share] = min_lr_share_;
  if (key.empty()) return;
  if (!share.is_number() || share < 0 || share > 1) {
    return note(key, share.dump() + " has no counterpart: it is no share of the learning rate");
  }
  const double lr = root_.value("optimizer", Json::object()).value("lr", OptimizerRecipe().lr);
  set(key, "optimizer.min_lr", share.get<double>() * lr);
}

// What a recipe does where it was given a value that it does not take, and the tool has no default either.
void Converter::note_defaults() {
  Recipe recipe;
  for (const RecipeField& field : detail::recipe_fields()) {
    const auto [section, name] = section_and_name(field.name);
    if (refused_.contains(field.name) && !root_.value(section, Json::object()).contains(name))
      note(field.name, "stays " + field.write(recipe).dump());
  }
}

// Whether `key` has a meaning of its own; it is converted then.
bool Converter::convert_special(const std::string& key, const Json& value) {
  if (convert_for_objective(key, value)) return true;
  if (std::ranges::count(kDone, key) > 0 || convert_schedule(key, value)) return true;
  if (!adapts_ && (key_of(key).starts_with("adapter.") || key.starts_with("loraplus_"))) {
    note(key, "there is no adapter");
    return true;
  }
  if (key == "eval_dataset" && tool_ == Tool::llama_factory && value.is_string()) return true;
  const auto whole = [&] { return value.is_number_integer(); };
  if (key == "max_steps") {
    if (whole() && value > 0) set(key, "train.steps", value);
  } else if (key == "val_set_size" || key == "val_size") {
    if (value.is_number() && value < 1) {
      set(key, "data.eval_fraction", value);
    } else {
      note(key, "a number of samples has no counterpart: give data.eval_fraction a share");
    }
  } else if (tool_ == Tool::llama_factory && key_of(key) == "data.pack" && value.is_boolean()) {
    set(key, "data.pack", packs());
    if (key == "packing" && packs() && !is_on("neat_packing"))
      note(key, "samples of one sequence do not see each other, as with neat_packing");
  } else if (key == "loraplus_lr_embedding") {
    if (value != 1e-6) note(key, value.dump() + " has no counterpart: it is 1e-6");
  } else if (key == "weight_decay" && adapts_ && tool_ == Tool::axolotl && find("loraplus_lr_ratio") != nullptr) {
    if (value != 0) note(key, "is left out: Axolotl has none beside loraplus_lr_ratio");
  } else if (key == "gradient_checkpointing") {
    set(key, "train.gradient_checkpointing", value == false ? "none" : "block");
  } else if (key == "disable_gradient_checkpointing" && value.is_boolean()) {
    if (value == true) set(key, "train.gradient_checkpointing", "none");
  } else if (key == "curriculum_sampling" && value.is_boolean()) {
    if (value == true) set(key, "data.shuffle", false);
  } else if (key == "bf16" || key == "fp16" || key == "pure_bf16") {
    if (value == true || value == "auto" || value == "full") set(key, "model.compute_dtype", "bf16");
    if (key == "fp16" && value == true) note(key, "bf16 is used");
  } else if (key == "lora_target_linear") {
    if (value == true) set(key, "adapter.target_modules", "all-linear");
  } else if (key == "lora_target_modules" && is_on("lora_target_linear")) {
    note(key, "lora_target_linear adapts every linear module; others of this list are left out");
  } else if ((key == "lora_target" || key == "additional_target") && value.is_string()) {
    const Json modules = detail::names_of(value.get<std::string>());
    set(key, key_of(key), key == "lora_target" && value == "all" ? Json("all-linear") : modules);
  } else if (key == "pissa_init" && value.is_boolean()) {
    const Json rounds = find("pissa_iter") == nullptr ? Json(16) : *find("pissa_iter");
    if (value == true) set(key, key_of(key), rounds == -1 ? "pissa" : "pissa_niter_" + rounds.dump());
  } else if (const std::string ours = key_for_foreign(key); ours == "train.eval_every" || ours == "train.save_every") {
    const bool saves = ours == "train.save_every";
    const std::string when = saves ? text("save_strategy") : text("eval_strategy") + text("evaluation_strategy");
    if (key.ends_with("steps") && whole()) return when == "no";
    if (saves && key.ends_with("strategy") && value == "no") {
      set(key, ours, 0);
    } else if (!key.ends_with("strategy") || (value != "steps" && value != "no"))
      note(key, value.dump() + " has no counterpart: give " + ours + " a number of steps, or a time");
  } else if (key == "resume_from_checkpoint" || key == "auto_resume_from_checkpoints") {
    if (value.is_string()) note(key, "another tool's checkpoint cannot be continued");
  } else if (key == "assistant_only_loss" || key == "completion_only_loss") {
    if (tool_ != Tool::trl || objective_ != ObjectiveType::sft || !value.is_boolean()) return false;
  } else if (key == "dataset_text_field") {
    if (value != "text") set(key, "data.fields", {{"text", value}});
  } else if (key == "template" || key == "chat_template" || key == "chat_template_jinja" ||
             key == "chat_template_path") {
    convert_template(key, value);
  } else {
    return false;
  }
  return true;
}

void Converter::convert_objective() {
  if (objective_ == ObjectiveType::sft) return;
  set("objective", "objective.type", objective());
  if (text("rl") == "ipo") set("rl", "objective.loss_type", "ipo");
}

// As TRL's trainers of preferences do, and LLaMA-Factory's, but for its reward models.
bool Converter::turns_dropout_off() const {
  const bool trains_preferences = is_pairwise(objective_) || objective_ == ObjectiveType::kto;
  const Json* off = find("disable_dropout");
  return trains_preferences && (objective_ != ObjectiveType::reward || tool_ != Tool::llama_factory) &&
         (off == nullptr || *off != false);
}

void Converter::convert_loss_type(const std::string& key, const Json& value) {
  const std::vector<std::string> known = loss_types_of(objective_);
  const bool has_no_choice = known.size() < 2 || (objective_ == ObjectiveType::kto && tool_ == Tool::llama_factory);
  if (has_no_choice) return;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    if (std::ranges::none_of(known, [&](const std::string& one) { return name == one; })) {
      return note(key, name.dump() + " has no counterpart: objective.loss_type is " + joined(known, " | "));
    }
  }
  set(key, "objective.loss_type", value);
}

void Converter::convert_likelihood(const std::string& key, const Json& value) {
  if (value == 0) return;
  if (objective_ == ObjectiveType::simpo) {
    set(key, "objective.cpo_alpha", value);
  } else if (objective_ == ObjectiveType::dpo) {
    likelihood_ = value;
  } else {
    return note(key, "has no counterpart for the objective " + objective());
  }
  if (tool_ == Tool::llama_factory) note(key, "the loss of chosen answers is a mean over tokens, not over answers");
}

// Whether `key` has a meaning of its own for an objective other than the next token.
bool Converter::convert_for_objective(const std::string& key, const Json& value) {
  const std::string ours = key_of(key), last = key.substr(key.rfind('.') + 1);
  if (objective_ == ObjectiveType::sft) return last == "loss_type" && value == "nll";
  if (ours == "data.pack" || ours == "data.train_on_prompt" || ours == "train.neftune_noise_alpha") {
    if (value != false && value != 0) note(key, "has no meaning for the objective " + objective());
  } else if (has_prompts() && (ours == "data.eval" || ours == "data.eval_fraction")) {
    note(key, "is left out: there is no loss of prompts alone");
  } else if (ours == "adapter.lora_dropout" && turns_dropout_off()) {
    if (value != 0) note(key, made_.tool + " turns dropout off for the objective " + objective());
  } else if (ours == "objective.label_smoothing" && tool_ == Tool::llama_factory) {
    if (value != 0) note(key, "has no counterpart: the loss sigmoid has no label_smoothing");
  } else if (last == "pref_loss" || last == "loss_type") {
    convert_loss_type(key, value);
  } else if (last == "rpo_alpha" || last == "pref_ftx") {
    convert_likelihood(key, value);
  } else if (last == "scale_rewards" && value.is_boolean()) {
    set(key, "objective.scale_rewards", value == true ? "group" : "none");
  } else if (last == "reward_model_name_or_path" && has_prompts()) {
    set(key, "rewards", Json::array({{{"type", "model"}, {"path", value}}}));
  } else {
    return last == "max_prompt_length" && has_prompts();  // finish_objective() adds it
  }
  return true;
}

// What several keys say together.
void Converter::finish_objective() {
  if (likelihood_.is_number()) {
    Json losses = root_["objective"].value("loss_type", Json("sigmoid"));
    if (!losses.is_array()) losses = Json::array({losses});
    Json weights = root_["objective"].value("loss_weights", Json(std::vector<int>(losses.size(), 1)));
    losses.push_back("sft");
    weights.push_back(likelihood_);
    root_["objective"]["loss_type"] = losses;
    root_["objective"]["loss_weights"] = weights;
  }
  if (!has_prompts()) return;
  if (!root_.contains("rewards")) {
    note("rewards", "is missing: say what a good answer is, as in `nibble recipes cat grpo`");
  }
  Json& length = root_["data"]["max_length"];
  const int64_t answer = root_["rollout"].value("max_new_tokens", int64_t{256});
  const Json* prompt = find("max_prompt_length");
  const bool is_limited = prompt != nullptr && prompt->is_number_integer();
  if (!is_limited && length.is_number() && length > answer) return;
  constexpr int64_t kPrompt = 1024;
  length = answer + (is_limited ? prompt->get<int64_t>() : kPrompt);
  if (!is_limited) {
    note("data.max_length", "counts prompt and answer; " + made_.tool + " has no limit for prompts, here it is " +
                                std::to_string(kPrompt) + " tokens");
  }
}

void Converter::convert_key(const std::string& key, const Json& value) {
  if (value.is_null() || convert_special(key, value)) return;
  const std::string ours = key_of(key);
  if (ours.empty()) return note(key, "has no counterpart");
  const std::string word = value.is_string() ? value_for_foreign(value.get<std::string>()) : "";
  set(key, ours, word.empty() ? value : Json(word));
}

ConvertedRecipe Converter::convert() {
  static constexpr const char* kNames[] = {"Axolotl", "LLaMA-Factory", "TRL"};
  made_.tool = kNames[static_cast<int>(tool_)];
  root_["model"] = Json::object();
  convert_adapter();
  convert_objective();
  convert_data();
  convert_trained_tokens();
  std::string written;
  const auto add_written = [&](const std::string& what) { written += (written.empty() ? "" : ", ") + what; };
  const Json* steps = find("max_steps");
  const bool has_steps = steps != nullptr && steps->is_number_integer() && *steps > 0;
  for (const auto& [key, value] : theirs_.items()) {
    const bool is_epochs = key == "num_epochs" || key == "num_train_epochs";
    if (!(is_epochs && has_steps)) convert_key(key, value);
  }
  for (const detail::ForeignDefault& one : detail::foreign_defaults(theirs_, tool_, objective_)) {
    const std::string key = key_of(one.key);
    const auto [section, name] = section_and_name(key);
    if ((key.starts_with("adapter.") && !adapts_) || (key == "train.epochs" && has_steps)) continue;
    if (key == "adapter.lora_dropout" && turns_dropout_off()) continue;
    if ((key == "data.pack" && objective_ != ObjectiveType::sft) || (key == "data.max_length" && has_prompts()))
      continue;
    if (key == "model.double_quant" && !root_["model"].contains("quantize")) continue;
    bool is_given = root_.contains(section) && root_[section].contains(name);
    for (const auto& [given, value] : theirs_.items()) {
      is_given = is_given || (!value.is_null() && key_of(given) == key && !refused_.contains(key));
    }
    if (is_given) continue;
    if (one.key == "max_length" && theirs_.contains(one.key))
      note(one.key, "null, no limit, has no counterpart: longer samples are cut; give data.max_length the longest");
    convert_key(one.key, Json::parse(one.value));
    add_written(one.key + "=" + one.value);
  }
  if (adapts_ && tool_ == Tool::llama_factory && find("lora_alpha") == nullptr && root_["adapter"].contains("r")) {
    root_["adapter"]["lora_alpha"] = 2 * root_["adapter"]["r"].get<int64_t>();
    add_written("lora_alpha=2 * lora_rank");
  }
  finish_objective();
  finish_schedule();
  if (!adapts_ && root_.value("/optimizer/weight_decay"_json_pointer, 0.0) > 0) {  // as Transformers' Trainer
    root_["optimizer"]["no_decay"] = {"norm", "ln_", "bias"};
    add_written("no decay of norms and biases");
  }
  note_defaults();
  const Json data = root_.value("data", Json::object());
  const auto leave_out = [&](const char* key, const char* why) {
    const auto [section, name] = section_and_name(key);
    if (root_.contains(section) && root_[section].erase(name) > 0) note(key, std::string("is left out, ") + why);
  };
  if (!data.contains("eval") && !data.contains("eval_fraction")) {
    for (const char* key : {"train.eval_every", "train.early_stop", "output.keep_best"})
      leave_out(key, "there is nothing to evaluate on: give it with data.eval or data.eval_fraction");
  } else if (!root_.contains("train") || !root_["train"].contains("eval_every")) {
    leave_out("train.early_stop", "nothing is evaluated while training: give it with train.eval_every");
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
  for (const char* section :
       {"model", "adapter", "objective", "rollout", "rewards", "data", "train", "optimizer", "output"}) {
    if (root_.contains(section)) ordered[section] = root_[section];
  }
  made_.text = ordered.dump(2) + "\n";
  return std::move(made_);
}

}  // namespace

ConvertedRecipe convert_recipe(const std::string& text, const std::string& place, const std::string& objective) {
  Json theirs = detail::parse_settings(text, place);
  const Tool tool = detail::foreign_tool(theirs, place);
  if (const Json trl = theirs.value("trl", Json()); tool == Tool::axolotl && trl.is_object()) {
    theirs.erase("trl");
    for (const auto& [key, value] : trl.items()) theirs["trl." + key] = value;
  }
  const ObjectiveType type = detail::foreign_objective(theirs, tool, objective, place);
  return Converter(std::move(theirs), tool, type).convert();
}

}  // namespace nibble
