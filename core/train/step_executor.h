#pragma once
// How the passes of a step run on the ranks there are: on one here, sharded and pipelined in parallel/.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/objectives/objective.h"
#include "nibble/core/train/gradient_sum.h"

namespace nibble {

class Communicator;
class Trace;

struct StepOptions {
  int64_t step = 1;          ///< number of this update, from 1; keys dropout
  double lr = 0;             ///< see Schedule
  double max_grad_norm = 0;  ///< 0: no clipping
  GradientSum gradient_sum = GradientSum::tree;
  DType compute_dtype = DType::f32;
  Trace* trace = nullptr;          ///< records the update, see trace.h
  double neftune_noise_alpha = 0;  ///< see StepContext
};

/// Stands for a microbatch where a rank has none and takes part in what the others exchange.
inline constexpr int64_t kIdle = -1;

/// A step under way.
struct StepWork {
  std::span<const Batch> microbatches;  ///< of this rank; one without tokens stands for kIdle
  const Objective& objective;
  const std::vector<Parameter*>& parameters;  ///< what this rank optimizes
  const StepOptions& options;
  LossCounts counts;                 ///< of the step on all ranks
  float scale = 0;                   ///< of gradients: 1 / counts.divisor
  RouterBalance* balance = nullptr;  ///< of the step, where its loss has a part for that

  /// The i-th microbatch, or null: there is nothing to learn from it, or it is beyond the last.
  const Batch* microbatch(int64_t i) const;
  StepContext context(RankContext& rank, const Batch& batch) const;
};

/// What a step's passes leave beside the gradients.
struct StepSums {
  double loss = 0;     ///< of the step: the sum over all microbatches of all ranks, divided
  double squares = 0;  ///< of all gradients on all ranks, each counted once
  LossCounts counts;
  int64_t label_tokens = 0, tokens = 0;
  int64_t computed_tokens = 0;  ///< fewer than `tokens` where samples share beginnings
  Metrics metrics;              ///< of the objective
};

/// Takes batches and an objective and leaves complete gradients. All ranks make the same calls.
class StepExecutor {
 public:
  explicit StepExecutor(RankContext& rank) : rank_(rank) {}
  virtual ~StepExecutor() = default;
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  /// Microbatches of a step of `count` that this rank computes, in order, or kIdle. Call before every step.
  virtual std::vector<int64_t> begin_step(int64_t count);
  /// The gradients of `parameters`, those this rank optimizes, become those of the step. Loss and gradients are sums
  /// over the microbatches of all ranks, divided once by what `objective` counts in all of them, which is agreed before
  /// the first forward pass. With a divisor of 0 nothing is computed.
  virtual StepSums gradients(std::span<const Batch> microbatches, const Objective& objective,
                             const std::vector<Parameter*>& parameters, const StepOptions& options);
  /// After the update: what the ranks updated apart is brought together.
  virtual void after_update() {}
  /// Sum of the loss over a batch, without gradients. Null: takes part in what the others exchange. counts: of all
  /// batches that are summed.
  virtual double loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                          const StepContext& step) = 0;
  /// Decoder::next_logits of all ranks that compute a batch together, the same on all of them. cache: of this rank's
  /// layers.
  virtual Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache) = 0;
  /// What an objective that surveys() has to know of `rounds` batches of each rank before the loss of one of them:
  /// LossCounts::settled. batch_at: null where this rank has none in a round.
  std::vector<double> survey(const Objective& objective, int64_t rounds,
                             const std::function<const Batch*(int64_t)>& batch_at, const StepContext& step);
  /// The objective's metrics of what has been computed since the last call, on all ranks; clears it.
  virtual Metrics take_metrics(const Objective& objective, const LossCounts& counts);
  /// values [n] f64 become those of the ranks that have the head.
  virtual void share_from_head(Tensor&) {}
  /// That of a second model which learns from the same steps (PPO's value model); null: there is none.
  virtual StepExecutor* companion() { return nullptr; }
  /// A line about the steps so far for the end of a run, or nothing. By all ranks.
  virtual std::string summary() const { return {}; }

  /// The ranks that compute different microbatches.
  virtual Communicator& data_ranks() const;
  RankContext& rank() const { return rank_; }

 protected:
  /// Empty, where the loss has a part for the balance of the experts.
  virtual std::optional<RouterBalance> router_balance() const { return std::nullopt; }
  /// Passes without gradients through the layers, in which work.balance counts what this rank's microbatches choose.
  virtual void count_choices(const StepWork& work) { (void)work; }
  /// Sum of the loss over the microbatches of all ranks; leaves the sum of their gradients, each times the scale.
  virtual double sum(const StepWork& work);
  /// Sum of the loss over a microbatch, and the scale times its gradient added to the parameters. Beyond the last one a
  /// rank takes part in exchanges only.
  virtual double microbatch(const StepWork& work, int64_t i) = 0;
  virtual double squares(const std::vector<Parameter*>& parameters) const;
  /// What was reported of the samples that were computed here.
  void add_facts(std::vector<SampleFacts> facts) { facts_.insert(facts_.end(), facts.begin(), facts.end()); }

 private:
  /// Those of all data ranks, in the order of sample numbers.
  std::vector<SampleFacts> gather_facts(std::vector<SampleFacts> own);

  RankContext& rank_;
  std::vector<SampleFacts> facts_;
};

/// A whole Decoder on one rank. decoder and rank must outlive this.
class LocalExecutor : public StepExecutor {
 public:
  LocalExecutor(Decoder& decoder, RankContext& rank) : StepExecutor(rank), decoder_(decoder) {}
  double loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                  const StepContext& step) override;
  Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache) override;

 protected:
  double microbatch(const StepWork& work, int64_t i) override;
  std::optional<RouterBalance> router_balance() const override { return decoder_.config().router_balance(); }
  void count_choices(const StepWork& work) override;
  /// How many passes this rank makes in a step, with those in which it only takes part in what others exchange.
  virtual int64_t passes(const StepWork& work) const { return static_cast<int64_t>(work.microbatches.size()); }
  /// A pass without gradients and without the head; null: takes part in what the others exchange.
  virtual void forward_layers(const Batch* batch, const StepContext& step);
  /// What a rank without a batch does where the others exchange in the passes of one.
  virtual void idle_forward(const Objective&, const StepContext&, bool /*training*/) {}
  /// A pass without gradients; where the layers are on several ranks, only that with the head knows the loss.
  virtual double forward(const Batch& batch, const StepContext& step, const TokenLoss& loss);
  /// `objective` for a batch, after the pass without adapters that it may want. Empty for NextToken, which the head has
  /// itself.
  TokenLoss token_loss(const Objective& objective, const Batch& batch, const LossCounts& counts,
                       const StepContext& step);
  /// `objective` as a function of the scores of a batch.
  LogitLoss score_loss(const Objective& objective, const Batch& batch, const LossCounts& counts);
  Decoder& decoder() const { return decoder_; }

 private:
  Decoder& decoder_;
};

/// Sum of the squares of the gradients in f64, in order.
double gradient_squares(const std::vector<Parameter*>& parameters);

}  // namespace nibble
