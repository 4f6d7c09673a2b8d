#pragma once
// Direct preference optimization (Rafailov et al. 2023) and the losses that TRL's DPOTrainer has beside it.

#include "nibble/core/objectives/options.h"

namespace nibble {

/// A pair's answers as their losses see them.
struct PairScores {
  double chosen = 0, rejected = 0;                      ///< log-probabilities that the policy gives
  double reference_chosen = 0, reference_rejected = 0;  ///< and the reference
  double chosen_tokens = 0, rejected_tokens = 0;        ///< of the answers, as averages count them (answer_length())
};

/// What the losses that sort (aot, aot_unpaired) compare a pair with: the others' values at its rank.
struct PairRanks {
  double reference_ratio = 0;       ///< of log-probabilities of chosen and rejected, at the rank of the policy's
  double rejected = 0, chosen = 0;  ///< log-ratio of rejected at the rank of chosen's, and the other way round
};

struct PairLoss {
  double value = 0;
  double by_chosen = 0, by_rejected = 0;  ///< derivatives by the policy's log-probabilities
};

/// The loss of one pair: the sum of options.loss_type by loss_weights, `sft` left out (it is no function of one pair).
PairLoss dpo_pair_loss(const ObjectiveOptions& options, const PairScores& pair, const PairRanks& ranks);

/// Mean over the pairs of a step. Facts: rewards and log-probabilities of both answers.
class Dpo final : public Objective {
 public:
  /// adapter_off: the reference is a pass without adapters.
  Dpo(ObjectiveOptions options, bool adapter_off);

  LossCounts counts(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  bool wants_reference() const override { return adapter_off_; }
  bool wants_statistics() const override { return true; }
  bool surveys() const override { return sorts_ || (options_.use_weighting && sft_weight_ != 0); }
  std::vector<SampleFacts> survey(const Batch& batch, const LabelLogProbs& log_probs) const override;
  std::vector<double> settle(std::span<const SampleFacts> facts) const override;
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& log_probs) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  /// How many predicted tokens both answers have.
  static double shared_tokens(const Batch& batch, size_t chosen);
  /// How much the k-th token of an answer counts, `shared` of whose tokens the other has as well.
  double token_weight(int64_t k, double shared) const;
  PairScores scores(const Batch& batch, const LabelLogProbs& log_probs, size_t chosen) const;
  double pair_weight(const Batch& batch, const LabelLogProbs& log_probs, size_t chosen) const;

  ObjectiveOptions options_;
  bool adapter_off_ = false, sorts_ = false;
  double sft_weight_ = 0;
};

}  // namespace nibble
