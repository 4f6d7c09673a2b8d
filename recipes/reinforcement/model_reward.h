#pragma once
// A reward that a model with a score head gives.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// The model of a reward of type model: a directory of its own, or the policy's base with the adapter that its
/// ScoreHead names.
ModelRecipe reward_base(const RewardRecipe& recipe, const ModelRecipe& policy);

/// The recipe key of entry `i` of Recipe::all_rewards: "rewards[0].path" or "objective.reward_model".
std::string reward_key(const Recipe& recipe, size_t i);
/// model_config of `judge`, the model of that entry; messages name `key`.
DecoderConfig reward_config(const ModelRecipe& judge, const std::string& key);

/// A Hugging Face directory with a score head of one label, or a PEFT adapter with one on the policy's base. It is
/// mapped from its files when it is first asked.
class ModelReward {
 public:
  /// Reads config.json alone. key: of the recipe, for messages. Throws InputError where the model scores
  /// several labels or has another vocabulary than the policy.
  ModelReward(const RewardRecipe& recipe, const ModelRecipe& policy, std::string key);
  ~ModelReward();

  /// Maps model and adapter, the weights as they are in the files, and lets them go: throws what score would throw.
  void try_out() const;

  /// The score of each text, at its last token. None where `stop`, asked before each with how many are there, says so.
  /// Throws NumericError where one is not finite.
  std::vector<double> score(const std::vector<std::vector<int32_t>>& texts, const std::function<bool(size_t)>& stop);

 private:
  struct Opened;
  ModelRecipe base_;
  std::string key_;
  std::unique_ptr<Opened> opened_;
};

}  // namespace nibble
