#pragma once
// Preference losses without a reference: CPO (Xu et al. 2024), SimPO (Meng et al. 2024), ORPO (Hong et al. 2024).

#include "nibble/core/objectives/dpo.h"

namespace nibble {

/// The loss of one pair of types cpo, simpo and orpo, without the NLL of the chosen answer; for the latter two and
/// loss_type ipo and simpo the log-probabilities are averages over tokens. log_odds: of orpo's chosen over rejected.
PairLoss cpo_pair_loss(const ObjectiveOptions& options, double chosen, double rejected, double* log_odds = nullptr);

/// Mean over the pairs of a step, plus the mean of -log p over all tokens of chosen answers of the step: cpo_alpha
/// times, or for orpo once, and over the prompts' tokens as well (Sample::prompt_counts).
/// Facts: rewards, log-probabilities, -log p of the chosen answer and its tokens, log odds.
class Cpo final : public Objective {
 public:
  explicit Cpo(ObjectiveOptions options);

  LossCounts counts(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  bool wants_statistics() const override { return true; }
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& log_probs) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  /// The answer's log-probability as the loss takes it: summed, or averaged.
  double score(const Batch& batch, size_t document, std::span<const float> log_probs) const;
  double share(const Batch& batch, size_t document) const;

  ObjectiveOptions options_;
  bool averages_ = false;
  double nll_weight_ = 0;
};

}  // namespace nibble
