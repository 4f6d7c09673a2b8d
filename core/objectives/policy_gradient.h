#pragma once
// Losses of answers that the model gave itself and that have rewards: GRPO (Shao et al. 2024) and what TRL's
// GRPOTrainer has beside it (DAPO, Dr. GRPO, BNPO, GSPO, CISPO), and RLOO (Ahmadian et al. 2024).

#include <limits>

#include "nibble/core/objectives/options.h"

namespace nibble {

/// Log-probabilities [tokens] of one answer. old: of the policy that wrote it; reference: empty without a KL term.
struct AnswerLogProbs {
  std::vector<double> policy, old, reference;
};

/// -min(w A, clamp(w, low, high) A) and its derivative by the ratio w.
struct ClippedLoss {
  double value = 0, derivative = 0;
  bool clipped = false;  ///< the clamped ratio is what counts
};
/// most: of the ratio in the first term.
ClippedLoss clipped_loss(double ratio, double advantage, double low, double high,
                         double most = std::numeric_limits<double>::infinity());

/// The loss of one answer: a sum over its tokens, for loss_type grpo their mean, for rloo of the answer as a whole.
struct AnswerLoss {
  double value = 0;
  std::vector<double> by_token;  ///< derivatives by the policy's log-probabilities
  double kl = 0;                 ///< sum over the tokens of what beta multiplies
  /// Ratios that clipping holds: of tokens, or (sequence level, rloo) of the answer.
  double clipped_low = 0, clipped_high = 0;
};

/// Needs at least one token.
AnswerLoss policy_gradient_loss(const ObjectiveOptions& options, const AnswerLogProbs& answer, double advantage);

/// What of an answer a loss and its metrics need: Sample::values of objectives with rollouts.
enum class AnswerValue : uint8_t { advantage, masked };  // masked: 1, it carries no loss (but counts as an answer)

/// grpo and rloo: mean over the answers of a step, over its tokens (bnpo, dapo, cispo), or over answers times
/// rollout.max_new_tokens (dr_grpo). The policy that wrote (Batch::old) is the one that is trained where the batch does
/// not say otherwise: all ratios are exactly 1. Facts: tokens, KL, clipped ratios and what they are counted by,
/// entropy.
class PolicyGradient final : public Objective {
 public:
  explicit PolicyGradient(ObjectiveOptions options);

  LossCounts counts(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  double temperature() const override { return options_.rollout.temperature; }
  bool wants_statistics() const override { return true; }
  /// Ratios of 1 stay 1 whatever the policy says of its own answers.
  bool weighs_by_log_probs(const Batch& batch) const override { return batch.old || batch.reference; }
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& log_probs) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  AnswerLoss loss_of(const Batch& batch, const LabelLogProbs& log_probs, size_t document) const;
  bool counts_tokens() const;

  ObjectiveOptions options_;
};

}  // namespace nibble
