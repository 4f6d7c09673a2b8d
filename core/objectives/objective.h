#pragma once
// What a step optimizes: a function of the log-probabilities that the model gives to the label tokens of a batch.

#include <array>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/models/head_loss.h"

namespace nibble {

/// What an objective counts in a batch. Summed over a step, on all ranks, before its first forward pass, so that
/// microbatches and ranks of unequal size give what one large batch gives.
struct LossCounts {
  double divisor = 0;  ///< loss and gradients are sums, divided by this once; 0: there is nothing to learn
  double second = 0;   ///< whatever a second term of the loss is divided by
  /// What Objective::settle made of the whole step.
  std::vector<double> settled = {};
};

/// What the policy's probabilities of all tokens are like before each label: ops::TokenStatistic [T] each, 0 where a
/// token has no label.
struct TokenStatistics {
  std::span<const float> collisions, entropies, mean_logits, top1;
};

/// What a model says of the labels of a batch: log-probabilities (natural log) [T], 0 where a token has no label.
struct LabelLogProbs {
  std::span<const float> policy;     ///< the model that is trained
  std::span<const float> reference;  ///< what it is compared with; empty where the objective wants none
  TokenStatistics statistics = {};   ///< empty unless wants_statistics()
  /// Of a score head, by Objective::score_rows, then by label; without log-probabilities.
  std::span<const float> scores = {};
};

/// Numbers that an objective reports of one sample or group of a step.
struct SampleFacts {
  int64_t sample = 0;  ///< Sample::index of its first document
  std::array<double, 12> values{};
};

/// Named numbers for metrics.jsonl, in order.
using Metrics = std::vector<std::pair<std::string, double>>;

/// A loss of log-probabilities. Samples that a loss compares are a group (Batch::groups), which no batch parts; so a
/// batch has all that the loss of its groups is made of.
class Objective {
 public:
  virtual ~Objective() = default;

  /// Label tokens, unless an objective says otherwise: pairs, answers, groups. batch: without tokens where a rank only
  /// takes part in what others compute.
  virtual LossCounts counts(const Batch& batch) const;

  /// Sum of the loss over a batch, not yet divided. weights [T], 0 before: minus the derivative of that sum by each
  /// label's log-probability. The head then gives the logits the gradient weight * (softmax - onehot). Where there are
  /// scores, weights are as many, minus the derivative by each. step: the counts of the whole step. All ranks that
  /// compute the batch together call it and get the same.
  virtual double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                          std::span<float> weights) const = 0;

  /// Whether every batch is computed without adapters first (DPO's reference where an adapter is trained), unless it
  /// brings its reference (Batch::reference).
  virtual bool wants_reference() const { return false; }
  /// Log-probabilities are of logits / this.
  virtual double temperature() const { return 1; }
  /// Whether LabelLogProbs::statistics are wanted.
  virtual bool wants_statistics() const { return false; }
  /// Whether the weights that loss_sum() sets for the batch depend on log-probabilities. Else it is asked for them with
  /// log-probabilities of 0 first, and the head has log-probabilities and gradient in one pass.
  virtual bool weighs_by_log_probs(const Batch&) const { return true; }
  /// Whether it is the sum of -log p over the label tokens: the head then has loss and gradient in one pass, and
  /// loss_sum() is not asked.
  virtual bool is_next_token() const { return false; }

  /// Whether the model ends in a score head, and in which rows of the batch its scores are wanted.
  virtual bool wants_scores() const { return false; }
  virtual std::vector<int32_t> score_rows(const Batch&) const { return {}; }
  /// A loss that is no function of log-probabilities or scores, on the rank that has the head; loss_sum() is not asked.
  /// Empty unless an objective is one. It reports its facts once the loss of all rows is known.
  virtual bool is_of_logits() const { return false; }
  using Tell = std::function<void(std::vector<SampleFacts>)>;
  virtual LogitLoss logit_loss(const Batch&, const StepContext&, const Tell& /*facts*/) const { return {}; }

  /// Whether the loss of a batch depends on all others of the step. Then each is computed once without gradients
  /// before: survey() gives facts of its samples, and settle() makes LossCounts::settled of those of all ranks. So
  /// nothing depends on how the step is cut into microbatches and shared out over ranks.
  virtual bool surveys() const { return false; }
  virtual std::vector<SampleFacts> survey(const Batch& batch, const LabelLogProbs& log_probs) const;
  /// facts: in the order of sample numbers.
  virtual std::vector<double> settle(std::span<const SampleFacts> facts) const;

  /// What there is to report of the batch's samples, for metrics(); none unless an objective has metrics.
  virtual std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& log_probs) const;
  /// By TRL's names, of a whole step or evaluation: means over its samples. The same names for any facts, none of them
  /// included; nan: there is nothing it would be the mean of.
  virtual Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const;
};

/// The sum of -log p over the label tokens.
class NextToken final : public Objective {
 public:
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override;
  bool is_next_token() const override { return true; }
};

}  // namespace nibble
