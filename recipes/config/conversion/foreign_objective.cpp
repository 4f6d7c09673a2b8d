#include "nibble/recipes/config/conversion/foreign_objective.h"

#include <algorithm>
#include <initializer_list>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/recipes/config/foreign_keys.h"
#include "nibble/recipes/config/shipped.h"

namespace nibble::detail {

namespace {

using enum ObjectiveType;
using Types = std::vector<ObjectiveType>;

// Those that TRL has a trainer for. Its CPOTrainer is that of SimPO, too.
constexpr ObjectiveType kTrainers[] = {sft, dpo, kto, cpo, orpo, reward, grpo, rloo, ppo, distillation};
constexpr ObjectiveType kConverted[] = {sft, dpo, kto, cpo, simpo, orpo, reward, grpo, rloo};

// Keys that mean the same in all tools and are not in the table of keys that people mistake for ours.
constexpr std::pair<std::string_view, std::string_view> kSameMeaning[] = {
    {"lora_alpha", "adapter.lora_alpha"},
    {"lora_dropout", "adapter.lora_dropout"},
    {"use_dora", "adapter.use_dora"},
    {"use_rslora", "adapter.use_rslora"},
    {"weight_decay", "optimizer.weight_decay"},
    {"loraplus_lr_ratio", "optimizer.loraplus_lr_ratio"},
    {"neftune_noise_alpha", "train.neftune_noise_alpha"},
    {"warmup_ratio", "optimizer.warmup_ratio"},
    {"warmup_steps", "optimizer.warmup_steps"},
    {"max_grad_norm", "train.max_grad_norm"},
    {"seed", "train.seed"},
    {"max_length", "data.max_length"},
    {"train_on_prompt", "data.train_on_prompt"},
    {"optimizer", "optimizer.type"},
};

struct OnlyOf {
  std::string_view key;
  std::initializer_list<ObjectiveType> types;
};

// Keys of TRL's trainers that are none here, or of more trainers than here (max_completion_length: before 1.0).
const OnlyOf kOnlyOf[] = {{"packing", {sft}},
                          {"eval_packing", {sft}},
                          {"packing_strategy", {sft}},
                          {"assistant_only_loss", {sft}},
                          {"completion_only_loss", {sft}},
                          {"dataset_text_field", {sft}},
                          {"max_seq_length", {sft}},
                          {"max_completion_length", {dpo, kto, cpo, orpo, grpo, rloo}},
                          {"max_prompt_length", {dpo, kto, cpo, orpo, grpo, rloo}},
                          {"rpo_alpha", {dpo}},
                          {"reference_free", {dpo}},
                          {"sync_ref_model", {dpo, grpo, rloo}},
                          {"reward_funcs", {grpo, rloo}},
                          {"reward_weights", {grpo, rloo}},
                          {"reward_model_name_or_path", {grpo, rloo}},
                          {"use_vllm", {grpo, rloo, distillation}},
                          {"steps_per_generation", {grpo, rloo}},
                          {"top_entropy_quantile", {grpo}},
                          {"multi_objective_aggregation", {grpo}},
                          {"reward_model_path", {ppo}},
                          {"rloo_k", {rloo}}};

// The trainers whose losses have all these names; those of SFT are none here.
Types trainers_with_losses(const Json& value) {
  std::vector<std::string> names;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    names.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  }
  Types types;
  for (const ObjectiveType type : kTrainers) {
    std::vector<std::string> known = loss_types_of(type);
    if (type == sft) known = {"nll", "dft", "chunked_nll"};
    const auto knows = [&](const std::string& name) { return std::ranges::count(known, name) > 0; };
    if (std::ranges::all_of(names, knows) && (names.size() == 1 || type == dpo)) types.push_back(type);
  }
  return types;
}

// The trainers that have a key; none: all of them have it, or it is not known.
Types trainers_with(const std::string& key, const Json& value) {
  for (const OnlyOf& one : kOnlyOf) {
    if (one.key == key) return one.types;
  }
  if (key == "loss_type") {
    if (Types types = trainers_with_losses(value); !types.empty()) return types;
  }
  Types types;
  std::ranges::copy_if(kTrainers, std::back_inserter(types),
                       [&](ObjectiveType type) { return !objective_key(key, type).empty(); });
  return types;
}

ObjectiveType trl_objective(const Json& theirs, const std::string& place) {
  Types fitting(std::begin(kTrainers), std::end(kTrainers));
  std::vector<std::string> keys;
  for (const auto& [key, value] : theirs.items()) {
    const Types types = trainers_with(key, value);
    if (value.is_null() || types.empty()) continue;
    keys.push_back(key);
    std::erase_if(fitting, [&](ObjectiveType type) { return std::ranges::count(types, type) == 0; });
  }
  if (keys.empty()) return sft;
  if (fitting.size() == 1) return fitting.front();
  const std::string given = joined(keys), names = joined(fitting, ", ", objective_type_name);
  throw UsageError(fitting.empty() ? "has keys that no trainer of TRL has together: " + given
                                   : "may be for the trainers " + names + " of TRL, which all have " + given,
                   "say for which, as in --objective " + (fitting.empty() ? "dpo" : names.substr(0, names.find(','))),
                   place);
}

}  // namespace

Tool foreign_tool(const Json& theirs, const std::string& place) {
  const auto has = [&](const char* key) { return theirs.contains(key); };
  if (has("base_model")) return Tool::axolotl;
  if (!has("model_name_or_path")) {
    throw UsageError("is a configuration of no tool that is known",
                     "Axolotl's has base_model, LLaMA-Factory's and TRL's have model_name_or_path", place);
  }
  const bool is_factory = has("stage") || has("finetuning_type") || has("cutoff_len") || has("do_train");
  return is_factory ? Tool::llama_factory : Tool::trl;
}

std::string objective_key(std::string key, ObjectiveType type) {
  key.erase(0, key.rfind('.') + 1);
  const std::string ours = key_for_foreign(key);
  Recipe recipe;
  recipe.objective.type = type;
  for (const RecipeField& field : recipe_fields()) {
    const bool same = ours.empty() && (field.name == "objective." + key || field.name == "rollout." + key);
    if ((same || field.name == ours) && field.applies && field.applies(recipe)) return field.name;
  }
  return ours == "objective.reference" && (type == dpo || type == kto) ? ours : "";
}

std::string recipe_key(const std::string& key, ObjectiveType type) {
  if (std::string ours = objective_key(key, type); !ours.empty()) return ours;
  for (const auto& [name, same] : kSameMeaning) {
    if (name == key) return std::string(same);
  }
  const std::string ours = key_for_foreign(key);
  return ours.starts_with("objective.") || ours.starts_with("rollout.") ? "" : ours;
}

ObjectiveType foreign_objective(const Json& theirs, Tool tool, const std::string& named, const std::string& place) {
  const auto text = [&](const char* key) {
    const Json value = theirs.value(key, Json());
    return value.is_string() ? value.get<std::string>() : "";
  };
  std::string name = named;
  if (tool == Tool::axolotl) {
    name = theirs.value("reward_model", Json()) == true ? "reward" : text("rl");
    if (name == "ipo") name = "dpo";
  } else if (tool == Tool::llama_factory) {
    name = text("stage");
    if (name == "pt") name = "sft";
    if (name == "rm") name = "reward";
    if (name == "dpo" && (text("pref_loss") == "orpo" || text("pref_loss") == "simpo")) name = text("pref_loss");
  }
  if (!named.empty() && tool != Tool::trl) {
    throw UsageError("is for a configuration of TRL, which does not say it; this one does", "leave it out",
                     "--objective");
  }
  if (name.empty()) name = tool == Tool::trl ? objective_type_name(trl_objective(theirs, place)) : "sft";
  if (name == "cpo" && text("loss_type") == "simpo") name = "simpo";
  const auto* const type = std::ranges::find(kConverted, name, objective_type_name);
  if (type != std::end(kConverted)) return *type;
  throw UsageError("a training of the kind \"" + name + "\" is not converted",
                   "edit a recipe that nibble brings: nibble recipes cp " + (is_shipped_recipe(name) ? name : "dpo"),
                   place);
}

}  // namespace nibble::detail
