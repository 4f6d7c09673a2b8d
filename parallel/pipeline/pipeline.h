#pragma once
// A model whose layers lie on several ranks: microbatches go up through the stages and their gradients come back down.

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/pipeline/schedule.h"

namespace nibble {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int64_t in_flight = 0;  ///< microbatches between forward and backward; 0: all of the step
};

/// This rank's stage. With one stage it calls the Decoder and nothing else.
class Pipeline {
 public:
  Pipeline(Decoder& stage, const PipelineOptions& options, const Mesh& mesh, RankContext& rank);
  ~Pipeline();

  /// The microbatches of this column in the step to come, of `count` that every column computes: those beyond, and
  /// those without tokens, are `spare` once more, without a gradient. scale: of the gradients. step: as train_step
  /// makes it.
  void begin_step(std::span<const Batch> microbatches, const Batch& spare, int64_t count, float scale,
                  const StepContext& step);
  /// Gives the loss sum of the next microbatch once its gradient is in the parameters: what train_step runs. Only the
  /// last stage knows the loss, the others get 0.
  double next();
  /// The sum of the loss over a batch, on all stages; no gradients.
  double loss_sum(const Batch& batch, const StepContext& step);
  /// Decoder::next_logits of all stages together, the same on all of them. cache: of this stage.
  Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache);

  /// `layout` of the data axes, carried on over the stages: losses, gradients of a tied embedding, the gradient norm.
  StepLayout over_stages(StepLayout layout);
  /// Where sharding keeps the gradient of an embedding that the first and the last stage have, tied (the parameter's
  /// own, unless this is called): asked for at the end of a step.
  void set_tied_gradient(std::function<Tensor()> gradient) { tied_gradient_ = std::move(gradient); }

  /// Share of the time in passes so far that the first stage waited for others: measured, and as the schedule makes it
  /// from what each stage took for its passes on average. By all stages.
  struct Bubble {
    double measured = 0, predicted = 0;
  };
  Bubble bubble() const;

 private:
  struct Slot;
  void forward(int64_t microbatch);
  void backward(int64_t microbatch);
  void join_tied_gradients();
  /// The stream above this stage's layers; undefined where it went on to the next stage.
  Tensor pass_on(DecoderPass& pass, int64_t tokens);
  Tensor receive(const char* operation, int from, int64_t tokens);
  /// receive() in a step, where waiting counts.
  Tensor wait_for(const char* operation, int from, int64_t tokens);

  Decoder& stage_;
  PipelineOptions options_;
  Communicator& stages_;
  RankContext& rank_;
  bool trainable_here_or_below_ = false, trainable_below_ = false;
  Parameter* tied_ = nullptr;  // on the first and the last stage, when it is trained
  std::function<Tensor()> tied_gradient_;

  std::vector<const Batch*> batches_;
  const Batch* spare_ = nullptr;
  float scale_ = 1;
  std::unique_ptr<StepContext> step_;
  std::vector<PipelineAction> actions_;
  size_t done_ = 0;
  std::vector<Slot> slots_;
  double waited_ = 0, forward_seconds_ = 0, backward_seconds_ = 0;  // those at work
  int64_t steps_ = 0, passes_ = 0;
  std::chrono::steady_clock::time_point returned_;
};

}  // namespace nibble
