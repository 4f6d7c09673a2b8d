#include "nibble/core/objectives/objective.h"

namespace nibble {

LossCounts Objective::counts(const Batch& batch) const { return {.divisor = static_cast<double>(batch.label_tokens)}; }
std::vector<SampleFacts> Objective::survey(const Batch&, const LabelLogProbs&) const { return {}; }
std::vector<double> Objective::settle(std::span<const SampleFacts>) const { return {}; }
std::vector<SampleFacts> Objective::facts(const Batch&, const LabelLogProbs&) const { return {}; }
Metrics Objective::metrics(std::span<const SampleFacts>, const LossCounts&) const { return {}; }

double NextToken::loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts&,
                           std::span<float> weights) const {
  double sum = 0;
  const std::span<const int32_t> targets = batch.targets.span<const int32_t>();
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == kIgnoreLabel) continue;
    weights[t] = 1;
    sum -= static_cast<double>(log_probs.policy[t]);
  }
  return sum;
}

}  // namespace nibble
