#pragma once
// The model beside a policy that says how much reward is still to come (PPO): the same base, or another one, with a
// score head and an adapter of its own.

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nibble/adapters/attach.h"
#include "nibble/core/models/decoder.h"
#include "nibble/parallel/parallel_model.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/plan/activation_policy.h"

namespace nibble {

/// In front of its parameters' names, wherever they stand beside the policy's.
inline constexpr std::string_view kValuePrefix = "value_model.";

/// The sections `model` and `adapter` as they are for the value model: with a score head of one label. No adapter where
/// the policy has none.
ModelRecipe value_base(const Recipe& recipe);
std::optional<AdapterRecipe> value_adapter(const Recipe& recipe);

class ValueModel {
 public:
  /// Opens it on the layout of the policy, whose tokenizer has `rows` tokens. What is given must outlive this. Throws
  /// as open_base and open_adapter, and InputError for a vocabulary that is smaller.
  ValueModel(const Recipe& recipe, int64_t rows, const Mesh& mesh, const ActivationPolicy& activations,
             RankContext& rank, const Observer& observer);

  /// What trains both: `policy` is the policy's, with the parameters it optimizes.
  std::unique_ptr<StepExecutor> pair(std::unique_ptr<StepExecutor> policy, std::vector<Parameter*> parameters);
  /// What this rank optimizes of it, in the optimizer's view; named with kValuePrefix.
  std::vector<Parameter*> parameters();
  Shape global_shape(const Parameter& part) const;
  /// `policy` for the policy's tensors, and its own for those of the value model.
  Slicer slicer(Slicer policy) const { return both(std::move(policy), parallel_->slicer()); }
  Slicer written_slicer(Slicer policy) const { return both(std::move(policy), parallel_->written_slicer()); }
  void share_values() { parallel_->share_values(); }

  /// value_adapter/ or value_model/ in `directory`.
  void export_to(const std::filesystem::path& directory, AdapterCompanions companions);

 private:
  static Slicer both(Slicer policy, Slicer own);

  const Recipe& recipe_;
  RankContext& rank_;
  ModelRecipe base_;
  std::unique_ptr<Objective> objective_;
  std::optional<Decoder> model_;
  std::optional<AttachedAdapter> adapter_;
  std::optional<ParallelModel> parallel_;
  std::vector<std::unique_ptr<Parameter>> named_;  // of parallel_, sharing their bytes
};

}  // namespace nibble
