// The rows of the sections train and optimizer.

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

RecipeField betas_field() {
  const std::string values = "two numbers from 0 to below 1";
  RecipeField field = bare_field("optimizer.betas", values,
                                 {{"type", "array"},
                                  {"items", {{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}}},
                                  {"minItems", 2},
                                  {"maxItems", 2}},
                                 "decay of the running mean and mean square of gradients (adamw)");
  field.read = [values](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_array() || value.size() != 2) refuse_value(place, values, value);
    recipe.optimizer.beta1 = read_number(value[0], place, values, 0, 1);
    recipe.optimizer.beta2 = read_number(value[1], place, values, 0, 1);
  };
  field.write = [](Recipe& recipe) -> Json { return {recipe.optimizer.beta1, recipe.optimizer.beta2}; };
  return field;
}

}  // namespace

std::vector<RecipeField> train_fields() {
  return {
      optional_positive_field(
          "train.epochs", [](Recipe& r) -> std::optional<double>& { return r.train.epochs; },
          "passes over the training data (1)"),
      optional_integer_field(
          "train.steps", 1, kLargestCount, [](Recipe& r) -> std::optional<int64_t>& { return r.train.steps; },
          "instead of train.epochs: optimizer steps"),
      integer_field(
          "train.microbatch_size", 1, 1 << 20, [](Recipe& r) -> int64_t& { return r.train.microbatch_size; },
          "sequences in one forward; with data.pack, sequences of data.max_length"),
      integer_field(
          "train.accumulate", 1, 1 << 20, [](Recipe& r) -> int64_t& { return r.train.accumulate; },
          "microbatches in one optimizer step, over all data-parallel ranks together"),
      choice_field<std::optional<GradientSum>>(
          "train.gradient_sum", {{"tree", GradientSum::tree}, {"running", GradientSum::running}},
          [](Recipe& r) -> std::optional<GradientSum>& { return r.train.gradient_sum; },
          "tree: same bits on 1, 2, 4, 8 ranks (tree for adapters, running for full runs)"),
      free_to_change(choice_field<std::optional<Recompute>>(
          "train.gradient_checkpointing",
          {{"auto", std::nullopt}, {"none", Recompute::none}, {"block", Recompute::block}},
          [](Recipe& r) -> std::optional<Recompute>& { return r.train.gradient_checkpointing; },
          "keep activations, or only each block's input and compute the block again")),
      number_field(
          "train.max_grad_norm", 0, kInfinity, [](Recipe& r) -> double& { return r.train.max_grad_norm; },
          "gradients with a larger norm are scaled down to it; 0 = off"),
      integer_field(
          "train.seed", 0, std::numeric_limits<int64_t>::max(), [](Recipe& r) -> int64_t& { return r.train.seed; },
          "key of every random number of the run"),
      free_to_change(integer_field(
          "train.threads", 0, 4096, [](Recipe& r) -> int64_t& { return r.train.threads; },
          "threads to compute on; 0 = all cores; results do not depend on it")),
      free_to_change(integer_field(
          "train.log_every", 1, kLargestCount, [](Recipe& r) -> int64_t& { return r.train.log_every; },
          "steps between lines of metrics.jsonl")),
      interval_field(
          "train.eval_every", [](Recipe& r) -> Interval& { return r.train.eval_every; },
          "how often to evaluate, besides once after the last step"),
      interval_field(
          "train.save_every", [](Recipe& r) -> Interval& { return r.train.save_every; },
          "how often to save a checkpoint, besides once after the last step"),
      free_to_change(integer_field(
          "train.samples", 0, 64, [](Recipe& r) -> int64_t& { return r.train.samples; },
          "prompts of the data that the model continues at the start, at evaluations and at the end")),
      free_to_change(integer_field(
          "train.early_stop", 0, kLargestCount, [](Recipe& r) -> int64_t& { return r.train.early_stop; },
          "stop after so many evaluations without a new lowest loss; 0 = never")),
      free_to_change(number_field(
          "train.stall_seconds", 0, kInfinity, [](Recipe& r) -> double& { return r.train.stall_seconds; },
          "a step or a save that lasts longer is told; 0 = never")),
      free_to_change(integer_field(
          "train.max_bad_steps", 1, kLargestCount, [](Recipe& r) -> int64_t& { return r.train.max_bad_steps; },
          "end at so many steps in a row whose loss or gradient is not finite; fewer are skipped")),
  };
}

std::vector<RecipeField> optimizer_fields() {
  return {
      choice_field<OptimizerKind>(
          "optimizer.type",
          {{"adamw", OptimizerKind::adamw}, {"adamw8bit", OptimizerKind::adamw8bit}, {"sgd", OptimizerKind::sgd}},
          [](Recipe& r) -> OptimizerKind& { return r.optimizer.type; },
          "update rule; adamw8bit keeps its state in 8 bits"),
      number_field(
          "optimizer.lr", 0, kInfinity, [](Recipe& r) -> double& { return r.optimizer.lr; }, "learning rate"),
      betas_field(),
      number_field(
          "optimizer.eps", 0, kInfinity, [](Recipe& r) -> double& { return r.optimizer.eps; },
          "added to the root of the mean square (adamw)"),
      number_field(
          "optimizer.weight_decay", 0, kInfinity, [](Recipe& r) -> double& { return r.optimizer.weight_decay; },
          "decoupled decay of every trainable tensor"),
      texts_field(
          "optimizer.no_decay", [](Recipe& r) -> std::vector<std::string>& { return r.optimizer.no_decay; },
          "tensors without decay: parts of names, * for any text"),
      choice_field<ScheduleKind>(
          "optimizer.schedule",
          {{"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear}, {"cosine", ScheduleKind::cosine}},
          [](Recipe& r) -> ScheduleKind& { return r.optimizer.schedule; }, "learning rate after warm-up"),
      integer_field(
          "optimizer.warmup_steps", 0, kLargestCount, [](Recipe& r) -> int64_t& { return r.optimizer.warmup_steps; },
          "steps in which the learning rate grows from 0"),
      number_field(
          "optimizer.warmup_ratio", 0, 1, [](Recipe& r) -> double& { return r.optimizer.warmup_ratio; },
          "instead of warmup_steps: share of all steps"),
      number_field(
          "optimizer.min_lr", 0, kInfinity, [](Recipe& r) -> double& { return r.optimizer.min_lr; },
          "where linear and cosine end"),
  };
}

}  // namespace nibble::detail
