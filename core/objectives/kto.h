#pragma once
// Kahneman-Tversky optimization (Ethayarajh et al. 2024): answers that are each good or bad.

#include "nibble/core/objectives/dpo.h"

namespace nibble {

/// The loss of one answer whose log-ratio of policy and reference is `ratio`; by_chosen: derivative by it.
PairLoss kto_loss(const ObjectiveOptions& options, double ratio, bool desirable, double kl);

/// Mean over the answers of a step (Batch::values: 1 or 0). With loss_type kto an estimate of the KL divergence is
/// subtracted: the mean log-ratio of answers that stand under other prompts (Batch::survey), of the whole step on all
/// ranks, but not below 0. Facts: verdict, reward, log-probability.
class Kto final : public Objective {
 public:
  Kto(ObjectiveOptions options, bool adapter_off);

  LossCounts counts(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  bool wants_reference() const override { return adapter_off_; }
  bool surveys() const override { return options_.loss_type.front() == "kto"; }
  std::vector<SampleFacts> survey(const Batch& batch, const LabelLogProbs& log_probs) const override;
  std::vector<double> settle(std::span<const SampleFacts> facts) const override;
  bool wants_statistics() const override { return true; }
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& log_probs) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  ObjectiveOptions options_;
  bool adapter_off_;
};

}  // namespace nibble
