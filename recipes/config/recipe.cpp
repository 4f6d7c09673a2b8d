#include "nibble/recipes/config/recipe.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/base/isa_levels.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/io/hub/hub_cache.h"
#include "nibble/core/io/hub/run_result.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/yaml.h"
#include "nibble/core/ops/cpu/peak_flops.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/core/text/unicode/utf8.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/config/foreign_keys.h"
#include "nibble/recipes/config/recipe_checks.h"
#include "nibble/recipes/config/recipe_fields.h"
#include "nibble/recipes/config/shipped.h"

namespace nibble {

using detail::Document;
using detail::format_of;
using detail::Json;
using detail::recipe_fields;
using detail::RecipeField;

namespace {

const std::vector<std::string> kSections = {"model", "adapter", "objective", "rollout",  "rewards",
                                            "data",  "train",   "optimizer", "parallel", "output"};

// Keys of which a recipe gives one.
constexpr std::pair<const char*, const char*> kAlternatives[] = {{"train.steps", "train.epochs"},
                                                                 {"data.eval_fraction", "data.eval"},
                                                                 {"optimizer.warmup_ratio", "optimizer.warmup_steps"}};

constexpr JsonLimits kRecipeLimits{
    .max_bytes = size_t{4} << 20, .max_depth = 16, .comments = true, .unique_keys = true};

const RecipeField* find_field(const std::string& name) {
  for (const RecipeField& field : recipe_fields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

bool is_section(const std::string& name) {
  return std::find(kSections.begin(), kSections.end(), name) != kSections.end();
}

[[noreturn]] void refuse_key(const std::string& place, const std::string& key) {
  std::vector<std::string> known = kSections;
  for (const RecipeField& field : recipe_fields()) known.push_back(field.name);
  // A key in the wrong section, or without one, is nearest to the key that has its last part.
  const std::string last = key.substr(key.rfind('.') + 1);
  std::string near;
  for (const std::string& name : known) {
    if (name.substr(name.rfind('.') + 1) == last) near = name;
  }
  if (near.empty()) near = key_for_foreign(key);
  if (near.empty()) near = nearest(key, known);
  throw UsageError("unknown key",
                   near.empty() ? "`nibble recipes reference` lists the keys" : "did you mean " + near + "?",
                   place + ": " + key);
}

// A list whose quotes the shell took away, data.train=[a.jsonl,b.jsonl]: texts between commas.
Json unquoted_list(const std::string& key, const std::string& text) {
  if (text.find_first_of("[]{}\"'", 1) != text.size() - 1) {
    throw UsageError("is no JSON list", "put quotes around it for the shell: " + key + "='[\"a\", \"b\"]'",
                     "command line: " + key);
  }
  Json list = Json::array();
  std::istringstream entries(text.substr(1, text.size() - 2));
  for (std::string entry; std::getline(entries, entry, ',');) {
    const size_t begin = entry.find_first_not_of(' '), end = entry.find_last_not_of(' ');
    if (begin != std::string::npos) list.push_back(entry.substr(begin, end - begin + 1));
  }
  return list;
}

// The value of `key=text`: JSON where the key takes what that JSON is, else the text itself.
Json override_value(const std::string& key, const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  const RecipeField* field = find_field(key);
  const bool takes_text = field != nullptr && field->accepts("string");
  if (value.is_discarded() && text.starts_with('[') && text.ends_with(']') && field && field->accepts("array")) {
    return unquoted_list(key, text);
  }
  if (value.is_discarded()) return text;
  if (takes_text && value.is_number() && !field->accepts("number") && !field->accepts("integer")) return text;
  if (takes_text && value.is_boolean() && !field->accepts("boolean")) return text;
  return value;
}

[[noreturn]] void refuse_section(const std::string& place) {
  throw UsageError("must be an object", "write { } around the section's keys, or leave it out", place);
}

void apply_override(Document& document, const std::string& override_text) {
  const size_t equals = override_text.find('=');
  if (equals == std::string::npos || equals == 0) {
    const bool ends_list = override_text.ends_with(']');
    throw UsageError("not an override",
                     ends_list ? "quote a list with blanks: 'data.train=[a, b]'" : "write key.path=value",
                     "command line: " + override_text);
  }
  const std::string key = override_text.substr(0, equals);
  const Json value = override_value(key, override_text.substr(equals + 1));
  const size_t dot = key.find('.');
  std::string known = key;  // data.fields of data.fields.prompt
  if (dot == std::string::npos) {
    if (!is_section(key)) refuse_key("command line", key);
    document.root[key] = value;
  } else {
    const size_t second = find_field(key) == nullptr ? key.find('.', dot + 1) : std::string::npos;
    known = key.substr(0, second);
    const RecipeField* field = find_field(known);
    if (field == nullptr || (known != key && !field->accepts("object"))) refuse_key("command line", key);
    Json& section = document.root[key.substr(0, dot)];
    if (section.is_null()) section = Json::object();
    if (!section.is_object()) refuse_section(document.place_of(key.substr(0, dot)));
    Json& place = section[known.substr(dot + 1)];
    if (known == key) {
      place = value;
    } else {
      if (!place.is_object()) place = Json::object();
      place[key.substr(second + 1)] = value;
    }
  }
  document.overridden.insert(known);
}

// Of two keys that say the same thing, the command line's is later than the file's: the file's is as if not given.
// Evaluation is turned off by taking away, or setting to 0, either of the keys that say on what.
void apply_later_keys(Document& document) {
  const auto section_of = [&](const std::string& key) -> Json& { return document.root[key.substr(0, key.find('.'))]; };
  const auto drop = [&](const std::string& key) {
    Json& section = section_of(key);
    if (!document.overridden.contains(key) && section.is_object()) section.erase(key.substr(key.find('.') + 1));
  };
  const auto value_of = [&](const std::string& key) {
    const Json& section = section_of(key);
    return section.is_object() ? section.value(key.substr(key.find('.') + 1), Json()) : Json();
  };
  for (const auto& [one, other] : kAlternatives) {
    for (const auto& [later, earlier] : {std::pair{one, other}, std::pair{other, one}}) {
      const bool evaluation = std::string_view(later).starts_with("data.eval");
      if (document.overridden.contains(later) && (evaluation || !value_of(later).is_null())) drop(earlier);
    }
  }
  const auto gives = [&](const std::string& key) { return !value_of(key).is_null() && value_of(key) != Json(0); };
  const auto says = [&](const std::string& key) { return document.overridden.contains(key); };
  if ((says("data.eval") || says("data.eval_fraction")) && !gives("data.eval") && !gives("data.eval_fraction")) {
    for (const char* key : {"train.eval_every", "train.early_stop", "output.keep_best"}) drop(key);
  }
  if (says("train.eval_every") && !gives("train.eval_every")) drop("train.early_stop");
}

// It decides what other keys mean.
void read_objective_type(const Document& document, Recipe& recipe) {
  const Json objective = document.root.value("objective", Json());
  if (!objective.is_object() || !objective.contains("type")) return;
  find_field("objective.type")->read(recipe, objective["type"], document.place_of("objective.type"));
  const bool distills = recipe.objective.type == ObjectiveType::distillation;
  recipe.objective.beta = default_beta(recipe.objective.type);
  recipe.objective.on_policy = distills && !document.root.value("rollout", Json()).is_null();
  for (const std::string key : {"lmbda", "seq_kd"}) {
    if (!distills || objective.value(key, Json()).is_null()) continue;
    find_field("objective." + key)->read(recipe, objective[key], document.place_of("objective." + key));
  }
  if (distills || recipe.objective.type == ObjectiveType::ppo) recipe.objective.rollout.completions = 1;
  // A microbatch of answers has no padding anyway.
  if (recipe.has_rollouts() || format_of(recipe.objective) != DataFormat::automatic) recipe.data.pack = false;
}

void read_key(const Document& document, const std::string& name, const Json& value, Recipe& recipe) {
  const RecipeField* field = find_field(name);
  if (field->applies && !field->applies(recipe)) {
    throw UsageError("has no meaning for the objective " + std::string(objective_type_name(recipe.objective.type)),
                     "leave it out", document.place_of(name));
  }
  field->read(recipe, value, document.place_of(name));
}

// A key that stands for itself, without a section.
bool is_list(const std::string& name) { return name == "rewards"; }

void read_section(const Document& document, const std::string& name, const Json& section, Recipe& recipe) {
  if (section.is_null()) return;
  if (is_list(name)) return read_key(document, name, section, recipe);
  if (!section.is_object()) refuse_section(document.place_of(name));
  if (name == "adapter") recipe.adapter.emplace();
  for (const auto& [key, value] : section.items()) {
    const std::string full = name + "." + key;
    if (find_field(full) == nullptr) refuse_key(document.place, full);
    if (value.is_null()) continue;
    read_key(document, full, value, recipe);
    if (name == "adapter") recipe.adapter->given.push_back(key);
  }
}

// IDs in the Hugging Face cache, and runs named for their adapters, become the directories they are.
void find_directories(Recipe& recipe) {
  recipe.model.path = find_model(recipe.model.path);
  recipe.model.tokenizer = find_in_hub(recipe.model.tokenizer, kHubModels).string();
  if (recipe.adapter) recipe.adapter->path = find_adapter(recipe.adapter->path);
  if (names_reference_directory(recipe.objective)) {
    recipe.objective.reference = find_model(recipe.objective.reference);
  }
  std::string& teacher = recipe.objective.teacher_model_name_or_path;
  teacher = find_model(teacher);
  recipe.objective.value_model = find_model(recipe.objective.value_model);
  recipe.objective.value_adapter = find_adapter(recipe.objective.value_adapter);
  recipe.objective.reward_model = find_scorer(recipe.objective.reward_model);
  for (RewardRecipe& reward : recipe.rewards) reward.path = find_scorer(reward.path);
}

void fill_defaults(const Document& document, Recipe& recipe) {
  const ObjectiveType type = recipe.objective.type;
  if (has_scores(type)) {
    recipe.model.score = ScoreHead{type == ObjectiveType::reward ? 1 : recipe.objective.num_labels,
                                   recipe.adapter ? recipe.adapter->path : std::string()};
    if (recipe.adapter) {  // as PEFT does for its task
      recipe.adapter->options.task = "SEQ_CLS";
      std::vector<std::string>& whole = recipe.adapter->options.modules_to_save;
      if (!std::ranges::count(whole, kScoreHead)) whole.emplace_back(kScoreHead);
    }
  }
  if (format_of(recipe.objective) != DataFormat::automatic) {
    recipe.data.format = format_of(recipe.objective);
    const Json data = document.root.value("data", Json());
    const auto gives = [&](const char* key) { return data.is_object() && !data.value(key, Json()).is_null(); };
    // What is too long loses its end, which of a reward model's texts is what is scored (as TRL).
    if (!gives("truncate") && !recipe.has_rollouts()) {
      recipe.data.truncate = type == ObjectiveType::reward ? Truncate::drop : Truncate::cut;
    }
    if (has_reference(recipe.objective) && recipe.objective.reference.empty()) {
      recipe.objective.reference = recipe.adapter ? "adapter_off" : "initial";
    }
  }
  recipe.model.names_dtype = recipe.model.compute_dtype.has_value();
  if (!recipe.model.names_dtype) {
    recipe.model.compute_dtype = recipe.model.dtype() == DType::bf16 ? ComputeDtype::bf16 : ComputeDtype::f32;
  }
  if (!recipe.train.gradient_sum) {
    recipe.train.gradient_sum = recipe.adapter ? GradientSum::tree : GradientSum::running;
  }
  if (!recipe.train.epochs && !recipe.train.steps) recipe.train.epochs = 1;
}

// What an adapter that is continued has, its directory says, but for what the recipe gives and for the dropout.
bool says(const AdapterRecipe& adapter, const std::string& key) {
  return adapter.path.empty() || key == "lora_dropout" || std::ranges::count(adapter.given, key) > 0;
}

}  // namespace

DType ModelRecipe::dtype() const {
  if (compute_dtype == ComputeDtype::f32) return DType::f32;
  return compute_dtype == ComputeDtype::bf16 || has_bf16(isa()) ? DType::bf16 : DType::f32;
}

std::vector<RewardRecipe> Recipe::all_rewards() const {
  std::vector<RewardRecipe> all = rewards;
  if (objective.reward_model.empty()) return all;
  RewardRecipe& last = all.emplace_back();
  last.type = RewardRecipe::Type::model;
  last.name = "reward_model";
  last.path = objective.reward_model;
  return all;
}

std::vector<std::filesystem::path> Recipe::inputs() const {
  std::vector<std::filesystem::path> all = {model.path,
                                            model.init,
                                            model.tokenizer,
                                            data.chat_template,
                                            objective.reference,
                                            objective.teacher_model_name_or_path,
                                            objective.value_model,
                                            objective.value_adapter,
                                            objective.rollout.file};
  if (adapter) all.emplace_back(adapter->path);
  for (const RewardRecipe& reward : all_rewards()) all.emplace_back(reward.path);
  for (const auto* sources : {&data.train, &data.eval}) {
    for (std::filesystem::path& path : data_paths(*sources)) all.push_back(std::move(path));
  }
  return all;
}

ops::Bf16Products ModelRecipe::products() const {
  if (bf16_products) return *bf16_products;
  return (names_dtype && !int8()) || dtype() == DType::f32 ? ops::Bf16Products::bf16 : faster_bf16_products();
}

std::string describe_arithmetic(const ModelRecipe& model) {
  const bool widened = model.dtype() == DType::bf16 && !model.multiplies_bf16();
  return (model.int8() ? "int8 with " : "") + std::string(dtype_name(model.dtype())) +
         (widened ? " multiplied in f32" : "");
}

Json detail::parse_settings(const std::string& text, const std::string& place) {
  Json root;
  if (is_yaml(place)) {
    require_utf8(text, place);
    root = parse_yaml(text, place, kRecipeLimits);
  } else {
    parse_json(text, place, kRecipeLimits);  // refuses what is no JSON, with line and column
    root = Json::parse(text, nullptr, true, true);
  }
  if (!root.is_object()) {
    throw is_yaml(place) ? UsageError("a recipe is a mapping of sections", "begin with a section, as in model:", place)
                         : UsageError("a recipe is a JSON object", "begin with {", place);
  }
  return root;
}

AdapterOptions default_adapter_options() {
  AdapterOptions options;
  options.r = 16;
  options.lora_alpha = 32;
  options.target_modules.pattern = "all-linear";
  return options;
}

Recipe parse_recipe(const std::string& text, const std::string& place, const std::vector<std::string>& overrides) {
  Document document{detail::parse_settings(text, place), place, {}};
  for (const std::string& override_text : overrides) apply_override(document, override_text);
  apply_later_keys(document);
  Recipe recipe;
  read_objective_type(document, recipe);
  for (const auto& [name, section] : document.root.items()) {
    if (name == "$schema") continue;  // editors look for it
    if (!is_section(name)) refuse_key(place, name);
    read_section(document, name, section, recipe);
  }
  find_directories(recipe);
  detail::check_recipe(document, recipe);
  fill_defaults(document, recipe);
  return recipe;
}

Recipe read_recipe(const std::string& file, const std::vector<std::string>& overrides) {
  std::string name = std::filesystem::path(file).filename().string();
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  if (!std::filesystem::exists(file) && is_shipped_recipe(name)) {
    throw IoError(file, "no such file", "to copy the recipe that nibble brings: nibble recipes cp " + name);
  }
  if (file.find('=') != std::string::npos && !std::filesystem::exists(file)) {
    std::vector<std::string> keys = {file};
    keys.insert(keys.end(), overrides.begin(), overrides.end());
    throw UsageError("is a key of a recipe, and no recipe is named",
                     "copy one (nibble recipes cp qlora) and name it before the keys: qlora.json " + shell_line(keys),
                     file);
  }
  return parse_recipe(read_text_file(file, kRecipeLimits.max_bytes), file, overrides);
}

std::string to_json(const Recipe& recipe) {
  Recipe copy = recipe;
  Json root = Json::object();
  for (const RecipeField& field : recipe_fields()) {
    const size_t dot = field.name.find('.');
    const std::string section = field.name.substr(0, dot);
    if (section == "adapter" && !(recipe.adapter && says(*recipe.adapter, field.name.substr(dot + 1)))) continue;
    if (section == "objective" && !recipe.is_preference()) continue;
    if (field.applies && !field.applies(recipe)) continue;
    const Json value = field.write(copy);
    if (value.is_null()) continue;
    (is_list(field.name) ? root[section] : root[section][field.name.substr(dot + 1)]) = value;
  }
  return root.dump(2) + "\n";
}

std::map<std::string, std::string> fixed_settings(const Recipe& recipe) {
  Recipe copy = recipe;
  std::map<std::string, std::string> settings;
  for (const RecipeField& field : recipe_fields()) {
    const bool in_adapter = field.name.starts_with("adapter.");
    const bool in_objective = field.name.starts_with("objective.");
    if (!field.decides_bits || (in_adapter && !recipe.adapter) || (in_objective && !recipe.is_preference())) continue;
    if (field.applies && !field.applies(recipe)) continue;
    settings[field.name] = field.write(copy).dump();
  }
  // A constant rate does not know how long the run is, so such a run may be made longer.
  if (recipe.optimizer.schedule == ScheduleKind::constant && recipe.optimizer.warmup_ratio == 0) {
    settings.erase("train.epochs");
    settings.erase("train.steps");
  }
  // Runs of versions that had no such key go on.
  if (recipe.model.multiplies_bf16() || !recipe.model.bf16_products) settings.erase("model.bf16_products");
  if (recipe.optimizer.loraplus_lr_ratio == 0) settings.erase("optimizer.loraplus_lr_ratio");
  if (recipe.train.neftune_noise_alpha == 0) settings.erase("train.neftune_noise_alpha");
  return settings;
}

OptimizerOptions OptimizerRecipe::options(bool layer_norms) const {
  constexpr double kEmbeddingLr = 1e-6;  // PEFT's loraplus_lr_embedding
  return {.kind = type,
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = eps,
          .weight_decay = weight_decay,
          .no_decay = no_decay,
          .loraplus_lr_ratio = loraplus_lr_ratio,
          .embedding_lr_ratio = loraplus_lr_ratio > 0 ? kEmbeddingLr / lr : 1,
          .layer_norms = layer_norms};
}

Schedule OptimizerRecipe::schedule_for(int64_t total_steps) const {
  Schedule result;
  result.kind = schedule;
  result.lr = lr;
  result.min_lr = min_lr;
  result.warmup_steps = warmup_ratio > 0 ? warmup_steps_of_ratio(warmup_ratio, total_steps) : warmup_steps;
  result.total_steps = total_steps;
  return result;
}

RunOptions run_options(const Recipe& recipe, int64_t total_steps) {
  RunOptions options;
  options.dir = recipe.output.dir;
  options.resume = recipe.output.resume;
  options.force = recipe.output.force;
  options.keep_last = static_cast<int>(recipe.output.keep_last);
  options.keep_best = recipe.output.keep_best;
  options.save_every = recipe.train.save_every;
  options.eval_every = recipe.train.eval_every;
  options.evaluates = !recipe.data.eval.empty() || recipe.data.eval_fraction > 0;
  options.log_every = recipe.train.log_every;
  if (recipe.has_rollouts()) {
    constexpr int64_t kOfToken = 48;  // ids, text, log-probabilities
    options.answer_bytes = kOfToken * recipe.train.microbatch_size * recipe.train.accumulate *
                           recipe.objective.rollout.max_new_tokens / steps_per_block(recipe.objective);
  }
  options.early_stop = recipe.train.early_stop;
  options.max_bad_steps = recipe.train.max_bad_steps;
  options.stall_seconds = recipe.train.stall_seconds;
  options.total_steps = total_steps;
  options.recipe = to_json(recipe);
  options.settings = fixed_settings(recipe);
  return options;
}

}  // namespace nibble
