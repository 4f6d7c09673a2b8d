#pragma once
// Proximal policy optimization (Schulman et al. 2017) with generalized advantage estimation, as TRL's PPOTrainer (1.12)
// has it: a policy, and a value model whose score head says at each token what is still to come.

#include "nibble/core/objectives/options.h"

namespace nibble {

/// One of the answers of a block, of n tokens.
struct PpoAnswer {
  std::vector<double> policy, reference;  ///< log-probabilities [n] by the policy that wrote it; reference may be empty
  std::vector<double> values;             ///< [n + 1]: before each token, and behind the last
  double score = 0;                       ///< nan: no reward function had anything to say
  bool ended = false;                     ///< it has an end; missing_eos_penalty is for the others
};

/// By position: the answer's tokens, and one behind them in answers shorter than the longest of the block, where their
/// score stands (as huggingface/trl#3750 has it; that of a longest one stands at its last token).
struct PpoEstimates {
  std::vector<double> rewards;     ///< -kl_coef x KL, and the score
  std::vector<double> returns;     ///< advantage before whitening + value
  std::vector<double> advantages;  ///< [n], whitened over all tokens of the block
};

std::vector<PpoEstimates> ppo_estimates(const ObjectiveOptions& options, std::span<const PpoAnswer> answers);
/// objective/*: means over answers.
Metrics ppo_block_metrics(const ObjectiveOptions& options, std::span<const PpoAnswer> answers);

/// Sample::values of an answer for both objectives: advantages [n], old values and returns by position.
std::vector<float> ppo_values(const PpoAnswer& answer, const PpoEstimates& estimates);

/// Mean over the answer tokens of a step of the clipped loss. The policy that wrote (Batch::old) is the one that is
/// trained where the batch does not say otherwise. Facts: tokens, loss, clipped ones, squares of log-ratios,
/// how far ratios are from 1 and the squares of that, entropies.
class PpoPolicy final : public Objective {
 public:
  explicit PpoPolicy(ObjectiveOptions options) : options_(std::move(options)) {}

  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  double temperature() const override { return options_.rollout.temperature; }
  bool wants_statistics() const override { return true; }
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& log_probs) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  ObjectiveOptions options_;
};

/// vf_coef times the mean over the positions of a step of the halved square of value - return, clipped around the old
/// value. Facts: positions, loss without vf_coef, clipped ones.
class PpoValue final : public Objective {
 public:
  explicit PpoValue(ObjectiveOptions options) : options_(std::move(options)) {}

  LossCounts counts(const Batch& batch) const override;
  bool wants_scores() const override { return true; }
  std::vector<int32_t> score_rows(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& seen, const LossCounts& step,
                  std::span<float> weights) const override;
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& seen) const override;
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  ObjectiveOptions options_;
};

}  // namespace nibble
