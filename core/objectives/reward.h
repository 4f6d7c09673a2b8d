#pragma once
// Reward models (Ouyang et al. 2022): the score of a chosen answer above that of the rejected one (Bradley and Terry).

#include "nibble/core/objectives/options.h"

namespace nibble {

/// Mean over the pairs of a step of -log sigmoid(chosen - rejected - margin), with the margin of the data (0 without),
/// plus center_rewards_coefficient times the square of the pair's sum. Facts: both scores.
class Reward final : public Objective {
 public:
  explicit Reward(const ObjectiveOptions& options)
      : center_(options.center_rewards_coefficient), pad_(options.pad_id) {}

  LossCounts counts(const Batch& batch) const override;
  bool wants_scores() const override { return true; }
  std::vector<int32_t> score_rows(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& seen, const LossCounts& step,
                  std::span<float> weights) const override;
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& seen) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  double center_;
  int32_t pad_;
};

}  // namespace nibble
