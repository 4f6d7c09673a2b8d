#pragma once
// Distillation (Hinton et al. 2015; Agarwal et al. 2024): the student's probabilities of all tokens become a teacher's,
// in texts of the data or in answers of its own.

#include "nibble/core/models/decoder.h"
#include "nibble/core/objectives/options.h"

namespace nibble {

/// Mean over the label tokens of a step of the generalized Jensen-Shannon divergence, see ops::divergence. Facts:
/// tokens and the sum of the student's entropy.
class Distillation final : public Objective {
 public:
  /// teacher: the whole model, frozen, with the student's vocabulary; null on a rank without the student's head.
  Distillation(const ObjectiveOptions& options, Decoder* teacher) : options_(options), teacher_(teacher) {}

  bool is_of_logits() const override { return true; }
  LogitLoss logit_loss(const Batch& batch, const StepContext& step, const Tell& facts) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  ObjectiveOptions options_;
  Decoder* teacher_;
};

}  // namespace nibble
