// The rows of the sections train and optimizer.

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

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

RecipeField interval_field(std::string name, Interval TrainRecipe::*at, std::string meaning) {
  const std::string values = "a number of steps (0: never) or a time such as \"10min\", \"90s\", \"2h\"";
  return free_to_change(value_field(std::move(name), values, {{"type", {"integer", "string"}}, {"minimum", 0}}, at,
                                    read_interval, std::move(meaning)));
}

}  // namespace

std::vector<RecipeField> train_fields() {
  return {
      number_field("train.epochs", "a number above 0", {{"exclusiveMinimum", 0.0}}, std::numeric_limits<double>::min(),
                   kInfinity, &TrainRecipe::epochs, "passes over the training data (1)"),
      integer_field("train.steps", 1, kLargestCount, &TrainRecipe::steps, "instead of train.epochs: optimizer steps"),
      integer_field("train.microbatch_size", 1, 1 << 20, &TrainRecipe::microbatch_size,
                    "sequences in one forward; with data.pack, sequences of data.max_length"),
      integer_field("train.accumulate", 1, 1 << 20, &TrainRecipe::accumulate,
                    "microbatches in one optimizer step, over all data-parallel ranks together"),
      choice_field("train.gradient_sum", {{"tree", GradientSum::tree}, {"running", GradientSum::running}},
                   &TrainRecipe::gradient_sum,
                   "tree: same bits on 1, 2, 4, 8 ranks (tree for adapters, running for full runs)"),
      free_to_change(choice_field("train.gradient_checkpointing",
                                  {{"auto", std::nullopt}, {"none", Recompute::none}, {"block", Recompute::block}},
                                  &TrainRecipe::gradient_checkpointing,
                                  "keep activations, or only each block's input and compute the block again")),
      number_field("train.max_grad_norm", 0, kInfinity, &TrainRecipe::max_grad_norm,
                   "gradients with a larger norm are scaled down to it; 0 = off"),
      only_for(
          {ObjectiveType::sft},
          number_field("train.neftune_noise_alpha", 0, kInfinity, &TrainRecipe::neftune_noise_alpha,
                       "NEFTune: in training, embeddings get uniform noise of at most this / sqrt(L D), where L is "
                       "the length of each text alone, packed or not; 0 = off")),
      integer_field("train.seed", 0, std::numeric_limits<int64_t>::max(), &TrainRecipe::seed,
                    "key of every random number of the run"),
      free_to_change(integer_field("train.threads", 0, 4096, &TrainRecipe::threads,
                                   "threads to compute on; 0 = all cores; results do not depend on it")),
      free_to_change(integer_field("train.log_every", 1, kLargestCount, &TrainRecipe::log_every,
                                   "steps between lines of metrics.jsonl")),
      interval_field("train.eval_every", &TrainRecipe::eval_every,
                     "how often to evaluate, besides once after the last step"),
      interval_field("train.save_every", &TrainRecipe::save_every,
                     "how often to save a checkpoint, besides once after the last step"),
      free_to_change(
          integer_field("train.samples", 0, 64, &TrainRecipe::samples,
                        "prompts of the data that the model continues at the start, at evaluations and at the end")),
      free_to_change(integer_field("train.early_stop", 0, kLargestCount, &TrainRecipe::early_stop,
                                   "stop after so many evaluations without a new lowest loss; 0 = never")),
      free_to_change(number_field("train.stall_seconds", 0, kInfinity, &TrainRecipe::stall_seconds,
                                  "a step or a save that lasts longer is reported; 0 = never")),
      free_to_change(
          integer_field("train.max_bad_steps", 1, kLargestCount, &TrainRecipe::max_bad_steps,
                        "end at so many steps in a row whose loss or gradient is not finite; fewer are skipped")),
  };
}

std::vector<RecipeField> optimizer_fields() {
  return {
      choice_field(
          "optimizer.type",
          {{"adamw", OptimizerKind::adamw}, {"adamw8bit", OptimizerKind::adamw8bit}, {"sgd", OptimizerKind::sgd}},
          &OptimizerRecipe::type, "update rule; adamw8bit keeps its state in 8 bits"),
      number_field("optimizer.lr", 0, kInfinity, &OptimizerRecipe::lr, "learning rate"),
      number_field(
          "optimizer.loraplus_lr_ratio", 0, kInfinity, &OptimizerRecipe::loraplus_lr_ratio,
          "LoRA+, as PEFT: the adapter's B and all vectors learn at so many times the learning rate, adapters "
          "of embeddings at 1e-6 (warm-up and schedule count for all three), and biases do not decay; 0 = off"),
      betas_field(),
      number_field("optimizer.eps", "a number above 0", {{"exclusiveMinimum", 0.0}}, std::numeric_limits<double>::min(),
                   kInfinity, &OptimizerRecipe::eps, "added to the root of the mean square (adamw)"),
      number_field("optimizer.weight_decay", 0, kInfinity, &OptimizerRecipe::weight_decay,
                   "decoupled decay of every trainable tensor"),
      texts_field("optimizer.no_decay", &OptimizerRecipe::no_decay,
                  "tensors without decay: parts of names, * for any text"),
      choice_field(
          "optimizer.schedule",
          {{"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear}, {"cosine", ScheduleKind::cosine}},
          &OptimizerRecipe::schedule, "learning rate after warm-up"),
      integer_field("optimizer.warmup_steps", 0, kLargestCount, &OptimizerRecipe::warmup_steps,
                    "steps in which the learning rate grows from 0"),
      number_field("optimizer.warmup_ratio", 0, 1, &OptimizerRecipe::warmup_ratio,
                   "instead of warmup_steps: share of all steps"),
      number_field("optimizer.min_lr", 0, kInfinity, &OptimizerRecipe::min_lr, "where linear and cosine end"),
  };
}

}  // namespace nibble::detail
