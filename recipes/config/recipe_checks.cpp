#include "nibble/recipes/config/recipe_checks.h"

#include <algorithm>
#include <filesystem>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/output_guard.h"

namespace nibble {

using detail::Document;
using detail::format_of;

DataFormat detail::format_of(const ObjectiveOptions& options) {
  const ObjectiveType type = options.type;
  if (has_given_answers(options)) return DataFormat::automatic;
  if (has_rollouts(options)) return DataFormat::prompts;
  if (type == ObjectiveType::kto) return DataFormat::unpaired;
  if (type == ObjectiveType::classification) return DataFormat::labeled;
  return is_pairwise(type) ? DataFormat::preference : DataFormat::automatic;
}

namespace {

bool holds_judgements(DataFormat format) {
  using enum DataFormat;
  return format == preference || format == unpaired || format == labeled || format == prompts || format == rollouts;
}

void check_rollouts(const Document& document, const Recipe& recipe) {
  const int64_t lines = recipe.train.microbatch_size * recipe.train.accumulate;
  const int64_t completions = recipe.objective.rollout.completions;
  if (lines % completions != 0) {
    document.refuse(
        "rollout.completions",
        "does not divide the answers of a step, train.microbatch_size x train.accumulate = " + std::to_string(lines),
        "a step takes all answers to a prompt");
  }
  const bool ppo = recipe.objective.type == ObjectiveType::ppo;
  if (ppo && lines % recipe.objective.num_mini_batches != 0) {
    document.refuse(
        "objective.num_mini_batches",
        "does not divide the answers of a block, train.microbatch_size x train.accumulate = " + std::to_string(lines),
        "each takes as many of them");
  }
  if (!recipe.objective.value_adapter.empty() && !recipe.adapter) {
    document.refuse("objective.value_adapter", "the policy is fully trained, and so is the value model",
                    "add an adapter section, or name a value_model");
  }
  if (recipe.objective.rollout.file.empty() && recipe.all_rewards().empty() && has_rewards(recipe.objective.type)) {
    document.refuse("rewards", "is missing", "say what a good answer is");
  }
  const std::vector<RewardRecipe> rewards = recipe.all_rewards();
  if (!rewards.empty() && std::ranges::all_of(rewards, [](const RewardRecipe& one) { return one.weight == 0; })) {
    document.refuse("rewards", "have weight 0, so that no answer is better than another", "raise the weight of one");
  }
  if (!recipe.objective.rollout.file.empty() && !recipe.all_rewards().empty()) {
    document.refuse(recipe.rewards.empty() ? "objective.reward_model" : "rewards",
                    "contradicts rollout.file, which has the rewards of its answers", "leave one of them out");
  }
  if (recipe.objective.rollout.file.empty() && recipe.data.max_length <= recipe.objective.rollout.max_new_tokens) {
    document.refuse("data.max_length",
                    "leaves no room for a prompt before rollout.max_new_tokens (" +
                        std::to_string(recipe.objective.rollout.max_new_tokens) + ")",
                    "it counts prompt and answer: raise it");
  }
  if (recipe.data.pack)
    document.refuse("data.pack", "prompts are not packed: answers stand without padding", "leave it out");
  if (has_given_answers(recipe.objective)) return;
  if (recipe.train.samples > 0) {
    document.refuse("train.samples", "prompts alone have no answers to compare with",
                    "leave it out; rollouts/step-N.jsonl has the answers of each step");
  }
  if (recipe.data.truncate == Truncate::cut) {
    document.refuse("data.truncate", "a prompt without its end asks for something else", "use drop or error");
  }
  if (!recipe.data.eval.empty() || recipe.data.eval_fraction > 0) {
    document.refuse(recipe.data.eval.empty() ? "data.eval_fraction" : "data.eval", "there is no loss of prompts alone",
                    "leave it out; rewards of each step are in metrics.jsonl");
  }
}

// The objective's own keys, and those of other sections that it needs.
void check_objective(const Document& document, const Recipe& recipe) {
  if (!recipe.is_preference()) {
    if (holds_judgements(recipe.data.format)) {
      document.refuse("data.format", "has answers that are compared, which next-token training does not do",
                      "set objective.type");
    }
    return;
  }
  try {
    check_objective_options(recipe.objective);
  } catch (const UsageError& error) {
    throw UsageError(error.what(), "", document.place);
  }
  const std::string type(objective_type_name(recipe.objective.type));
  if (recipe.pretrains()) {
    document.refuse("model.init", "random weights are trained on the next token", "start from a trained model");
  }
  if (recipe.objective.reference == "adapter_off" && !recipe.adapter) {
    document.refuse("objective.reference", "there is no adapter", "use initial, or a directory");
  }
  const DataFormat wanted = format_of(recipe.objective);
  if (wanted == DataFormat::automatic) {  // distillation
    if (holds_judgements(recipe.data.format)) document.refuse("data.format", type + " reads texts", "leave it out");
    if (recipe.has_rollouts()) check_rollouts(document, recipe);
    return;
  }
  if (has_scores(recipe.objective.type) && recipe.train.samples > 0) {
    document.refuse("train.samples", "a model that scores continues no text", "leave it out");
  }
  if (recipe.data.format != DataFormat::automatic && recipe.data.format != wanted) {
    document.refuse("data.format", type + " reads " + std::string(data_format_name(wanted)), "leave it out");
  }
  if (recipe.has_rollouts()) check_rollouts(document, recipe);
  if (recipe.data.train_on_prompt)
    document.refuse("data.train_on_prompt", type + " trains no tokens of prompts", "leave it out");
}

}  // namespace

void detail::check_tensor_parallel(const Document& document, const Recipe& recipe) {
  if (recipe.parallel.tensor <= 1) return;
  if (recipe.optimizer.type == OptimizerKind::adamw8bit) {
    document.refuse("optimizer.type", "adamw8bit keeps its state in blocks that parallel.tensor would split",
                    "use adamw, or parallel.shard");
  }
  const ObjectiveType type = recipe.objective.type;
  if (has_scores(type) || type == ObjectiveType::distillation || type == ObjectiveType::ppo) {
    document.refuse("parallel.tensor", std::string(objective_type_name(type)) + " needs a full head",
                    "use parallel.shard or parallel.pipeline");
  }
}

void detail::check_recipe(const Document& document, const Recipe& recipe) {
  const auto contradiction = [&](const std::string& key, const std::string& other) {
    document.refuse(key, "contradicts " + other, "give one of them; " + other + "=null takes it out of the recipe");
  };
  const ModelRecipe& model = recipe.model;
  if (model.path.empty() && model.init.empty()) document.refuse("model.path", "is missing", "name a model directory");
  if (!model.path.empty() && !model.init.empty()) contradiction("model.init", "model.path");
  if (recipe.pretrains() && recipe.adapter)
    document.refuse("adapter", "random weights need no adapter", "leave it out");
  if (recipe.pretrains() && model.quantize)
    document.refuse("model.quantize", "4-bit weights cannot be trained", "leave it out");
  if (recipe.adapter && recipe.adapter->path.empty() && recipe.adapter->options.target_modules.empty() &&
      recipe.adapter->options.target_parameters.empty()) {
    document.refuse("adapter.target_modules", "names no module",
                    "name some, or tensors of experts in adapter.target_parameters");
  }
  if (model.quantize && !recipe.adapter) {
    document.refuse("model.quantize", "4-bit weights cannot be trained", "add an adapter section, or leave it out");
  }
  if (model.int8() && !recipe.adapter) {
    document.refuse("model.compute_dtype", "weights that are trained are not multiplied in 8 bits",
                    "add an adapter section, or use bf16 or f32");
  }
  // With no degree given the ranks of a launch are replicas.
  if (recipe.parallel.mesh().ranks() != 1) recipe.parallel.mesh().check_experts();
  if (recipe.parallel.experts > 1 && recipe.has_rollouts() && recipe.objective.rollout.file.empty()) {
    document.refuse("parallel.experts", "needs ranks that compute in step, which they do not while they write answers",
                    "use parallel.shard or parallel.replicate, or give the answers in rollout.file");
  }
  if (recipe.parallel.experts > 1 && recipe.objective.type == ObjectiveType::ppo) {
    document.refuse("parallel.experts", "does not spread the experts of a value model, which ppo has",
                    "use parallel.shard or parallel.replicate");
  }
  if ((model.block_size & (model.block_size - 1)) != 0)
    document.refuse("model.block_size", "must be a power of two", "write 64 or leave it out");
  if (recipe.data.train.empty() && recipe.objective.rollout.file.empty())
    document.refuse("data.train", "is missing", "name a data file");
  if (!recipe.data.eval.empty() && recipe.data.eval_fraction > 0) {
    contradiction("data.eval_fraction", "data.eval");
  }
  const bool evaluates = !recipe.data.eval.empty() || recipe.data.eval_fraction > 0;
  const TrainRecipe& train = recipe.train;
  if (train.epochs && train.steps) contradiction("train.steps", "train.epochs");
  if (!evaluates && (train.eval_every.steps > 0 || train.eval_every.seconds > 0)) {
    document.refuse("train.eval_every", "there is nothing to evaluate on", "give data.eval or data.eval_fraction");
  }
  if (!evaluates && train.early_stop > 0) {
    document.refuse("train.early_stop", "there is nothing to evaluate on", "give data.eval or data.eval_fraction");
  }
  if (!evaluates && recipe.output.keep_best) {
    document.refuse("output.keep_best", "there is nothing to evaluate on", "give data.eval or data.eval_fraction");
  }
  if (train.early_stop > 0 && train.eval_every.steps == 0 && train.eval_every.seconds == 0) {
    document.refuse("train.early_stop", "needs evaluations while training", "set train.eval_every");
  }
  const OptimizerRecipe& optimizer = recipe.optimizer;
  if (optimizer.warmup_steps > 0 && optimizer.warmup_ratio > 0) {
    contradiction("optimizer.warmup_ratio", "optimizer.warmup_steps");
  }
  check_tensor_parallel(document, recipe);
  if (optimizer.loraplus_lr_ratio > 0 && (!recipe.adapter || optimizer.lr == 0)) {
    document.refuse("optimizer.loraplus_lr_ratio",
                    recipe.adapter ? "multiplies optimizer.lr, which is 0" : "is for adapters, and there is none",
                    recipe.adapter ? "raise optimizer.lr" : "add an adapter section, or leave it out");
  }
  if (optimizer.min_lr > optimizer.lr)
    document.refuse("optimizer.min_lr", "is larger than optimizer.lr", "lower it, or raise optimizer.lr");
  check_objective(document, recipe);
  if (recipe.output.dir.empty()) document.refuse("output.dir", "is missing", "name a directory to write to");
  guard_output(recipe.output.dir, recipe.inputs());
  if (recipe.data.cache.empty()) return;
  Recipe models = recipe;
  models.data.train.clear();  // beside its data a cache may be
  models.data.eval.clear();
  try {
    guard_output(std::filesystem::path(recipe.data.cache) / "any", models.inputs());
  } catch (const UsageError&) {
    document.refuse("data.cache", "lies in a model, adapter or tokenizer that is read", "name another directory");
  }
}

}  // namespace nibble
