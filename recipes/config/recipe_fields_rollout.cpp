// The rows of the section rollout: answers that the model gives while it is trained.

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

RolloutOptions& options(Recipe& recipe) { return recipe.objective.rollout; }

RecipeField share_field(std::string name, Place<double> at, std::string meaning) {
  const std::string values = "a number from 0 to 1";
  RecipeField field =
      bare_field(std::move(name), values, {{"type", "number"}, {"minimum", 0}, {"maximum", 1}}, std::move(meaning));
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_number(value, place, values, 0, 1 + 1e-9);
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe); };
  return field;
}

}  // namespace

std::vector<RecipeField> rollout_fields() {
  constexpr double kMost = 1e6;
  std::vector<RecipeField> fields = {
      integer_field(
          "rollout.completions", 1, kLargestCount, [](Recipe& r) -> int64_t& { return options(r).completions; },
          "answers to each prompt (ppo, distillation: 1)"),
      integer_field(
          "rollout.max_new_tokens", 1, kLargestCount, [](Recipe& r) -> int64_t& { return options(r).max_new_tokens; },
          "longest answer"),
      number_field(
          "rollout.temperature", 0, kMost, [](Recipe& r) -> double& { return options(r).temperature; },
          "logits are divided by it, for sampling and (but for distillation) in the loss"),
      share_field(
          "rollout.top_p", [](Recipe& r) -> double& { return options(r).top_p; },
          "only the most probable tokens that together reach this"),
      integer_field(
          "rollout.top_k", 0, kLargestCount, [](Recipe& r) -> int64_t& { return options(r).top_k; },
          "only so many of the most probable tokens; 0: all"),
      share_field(
          "rollout.min_p", [](Recipe& r) -> double& { return options(r).min_p; },
          "only tokens at least this share as probable as the most probable one"),
      texts_field(
          "rollout.stop", [](Recipe& r) -> std::vector<std::string>& { return options(r).stop; },
          "texts that end an answer, beside the tokens that do"),
      free_to_change(text_field(
          "rollout.file", "a file", [](Recipe& r) -> std::string& { return options(r).file; },
          "given answers (with rewards) instead, in the order of the lines (format rollouts)")),
  };
  for (RecipeField& field : fields) field.applies = [](const Recipe& recipe) { return recipe.has_rollouts(); };
  return fields;
}

}  // namespace nibble::detail
