// The rows of the section rollout: answers that the model gives while it is trained.

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

std::vector<RecipeField> rollout_fields() {
  constexpr double kMost = 1e6;
  std::vector<RecipeField> fields = {
      integer_field("rollout.completions", 1, kLargestCount, &RolloutOptions::completions,
                    "answers to each prompt (ppo, distillation: 1)"),
      integer_field("rollout.max_new_tokens", 1, kLargestCount, &RolloutOptions::max_new_tokens, "longest answer"),
      number_field("rollout.temperature", 0, kMost, &RolloutOptions::temperature,
                   "logits are divided by it, for sampling and (but for distillation) in the loss"),
      share_field("rollout.top_p", &RolloutOptions::top_p, "only the most probable tokens that together reach this"),
      integer_field("rollout.top_k", 0, kLargestCount, &RolloutOptions::top_k,
                    "only so many of the most probable tokens; 0: all"),
      share_field("rollout.min_p", &RolloutOptions::min_p,
                  "only tokens at least this share as probable as the most probable one"),
      texts_field("rollout.stop", &RolloutOptions::stop, "texts that end an answer, beside the tokens that do"),
      free_to_change(text_field("rollout.file", "a file", &RolloutOptions::file,
                                "given answers (with rewards) instead, in the order of the lines (format rollouts)")),
  };
  for (RecipeField& field : fields) field.applies = [](const Recipe& recipe) { return recipe.has_rollouts(); };
  return fields;
}

}  // namespace nibble::detail
