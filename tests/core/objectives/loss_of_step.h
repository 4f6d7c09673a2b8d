#pragma once
// The loss of one batch that is a whole step.

#include "nibble/core/objectives/objective.h"

namespace nibble::test {

struct StepLoss {
  double loss = 0;             ///< divided
  std::vector<float> weights;  ///< not divided, see Objective::loss_sum
  LossCounts counts;
};

inline StepLoss loss_of_step(const Objective& objective, const Batch& batch, const LabelLogProbs& log_probs) {
  StepLoss result;
  result.counts = objective.counts(batch);
  if (objective.surveys()) {
    const Batch& surveyed = batch.survey ? *batch.survey : batch;
    result.counts.settled = objective.settle(objective.survey(surveyed, log_probs));
  }
  result.weights.assign(std::max(log_probs.policy.size(), log_probs.scores.size()), 0);
  result.loss = objective.loss_sum(batch, log_probs, result.counts, result.weights) / result.counts.divisor;
  return result;
}

}  // namespace nibble::test
