#pragma once
// A model whose layers lie on several ranks: microbatches go up through the stages and their gradients come back down.

#include <functional>
#include <memory>
#include <vector>

#include "nibble/core/base/seconds_now.h"
#include "nibble/parallel/pipeline/schedule.h"
#include "nibble/parallel/sharded_executor.h"

namespace nibble {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int64_t in_flight = 0;                          ///< microbatches between forward and backward; 0: all of the step
  std::function<double()> seconds = seconds_now;  ///< the clock that passes are timed with
};

/// This rank's stage, which may be sharded, copied and tensor-parallel besides.
class PipelinedExecutor final : public ShardedExecutor {
 public:
  PipelinedExecutor(Decoder& stage, ParallelModel& parallel, const PipelineOptions& options, RankContext& rank);
  ~PipelinedExecutor() override;

  double loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                  const StepContext& step) override;
  Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache) override;
  void share_from_head(Tensor& values) override { stages_.broadcast("from the head", values, stages_.size() - 1); }
  std::string summary() const override;

  /// Share of the time in passes so far that the first stage waited for others: measured, and as the schedule makes it
  /// from what each stage took for its passes on average. By all stages.
  struct Bubble {
    double measured = 0, predicted = 0;
  };
  Bubble bubble() const;

 private:
  struct Slot;
  double sum(const StepWork& work) override;
  double microbatch(const StepWork& work, int64_t i) override;
  double squares(const std::vector<Parameter*>& parameters) const override;
  void forward_layers(const Batch* batch, const StepContext& step) override;
  double forward(const Batch& batch, const StepContext& step, const TokenLoss& loss) override;

  void run_forward(const StepWork& work, int64_t microbatch);
  void run_backward(const StepWork& work, int64_t microbatch);
  void join_tied_gradients();
  /// The stream above this stage's layers; undefined where it went on to the next stage.
  Tensor pass_on(DecoderPass& pass, int64_t tokens);
  Tensor receive(const char* operation, int from, int64_t tokens);
  /// receive() in a step, where waiting counts.
  Tensor wait_for(const char* operation, int from, int64_t tokens);

  PipelineOptions options_;
  Communicator& stages_;
  bool trainable_here_or_below_ = false, trainable_below_ = false;

  std::vector<PipelineAction> actions_;
  size_t done_ = 0;
  std::vector<Slot> slots_;
  double waited_ = 0, forward_seconds_ = 0, backward_seconds_ = 0;  // those at work
  int64_t steps_ = 0, passes_ = 0;
  double returned_ = 0;
};

/// The executor for the layout that `parallel` has.
std::unique_ptr<StepExecutor> make_executor(Decoder& decoder, ParallelModel& parallel, const PipelineOptions& options,
                                            RankContext& rank);

}  // namespace nibble
