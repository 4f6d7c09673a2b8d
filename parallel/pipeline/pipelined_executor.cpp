#include "nibble/parallel/pipeline/pipelined_executor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/pipeline/schedule_time.h"

namespace nibble {

namespace {

bool has_trainable(Decoder& stage) {
  bool found = false;
  stage.visit([&](Parameter& parameter) { found = found || parameter.trainable; });
  return found;
}

}  // namespace

// A microbatch between its forward and its backward pass.
struct PipelinedExecutor::Slot {
  std::unique_ptr<DecoderPass> pass;
  Tensor gradient;  // of the stream above the last layer, on the last stage
  double loss = 0;
};

PipelinedExecutor::PipelinedExecutor(Decoder& stage, ParallelModel& parallel, const PipelineOptions& options,
                                     RankContext& rank)
    : ShardedExecutor(stage, parallel, rank), options_(options), stages_(parallel.mesh().pipeline()) {
  const double mine = has_trainable(stage) ? 1 : 0;
  MemoryPool pool;
  const Tensor part = Tensor::from<double>(pool, {1}, std::span<const double>(&mine, 1));
  Tensor all = Tensor::empty(pool, {stages_.size()}, DType::f64);
  stages_.all_gather("trainable stages", part, all);
  for (int s = 0; s < stages_.rank(); ++s) trainable_below_ = trainable_below_ || all.data<const double>()[s] > 0;
  trainable_here_or_below_ = trainable_below_ || mine > 0;
  stage.set_trainable_below(trainable_below_);
}

PipelinedExecutor::~PipelinedExecutor() = default;

Tensor PipelinedExecutor::receive(const char* operation, int from, int64_t tokens) {
  Tensor value = Tensor::empty(rank().pool, {tokens, decoder().config().width}, DType::f32, operation);
  stages_.receive(operation, value, from);
  return value;
}

Tensor PipelinedExecutor::wait_for(const char* operation, int from, int64_t tokens) {
  const double start = options_.seconds();
  Tensor value = receive(operation, from, tokens);
  waited_ += options_.seconds() - start;
  return value;
}

double PipelinedExecutor::sum(const StepWork& work) {
  const int64_t count = passes(work);
  actions_ = pipeline_actions(options_.schedule, stages_.size(), stages_.rank(), count,
                              options_.in_flight > 0 ? options_.in_flight : std::max<int64_t>(count, 1));
  done_ = 0;
  ++steps_;
  slots_.clear();
  slots_.resize(static_cast<size_t>(count));
  const double loss = ShardedExecutor::sum(work);
  join_tied_gradients();
  return stages_.all_reduce_sum("sum loss", decoder().has_head() ? loss : 0.0);
}

void PipelinedExecutor::run_forward(const StepWork& work, int64_t microbatch) {
  const Batch* batch = work.microbatch(microbatch);
  const bool idle = !batch;
  if (idle && !serves()) return idle_forward(work.objective, {rank()}, true);
  if (idle) batch = &idle_batch();
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  const StepContext context = idle ? idle_context(work) : work.context(rank(), *batch);
  TokenLoss loss;
  if (idle) {
    idle_reference(work.objective, context);
  } else {
    loss = token_loss(work.objective, *batch, work.counts, context);
  }
  const int64_t tokens = batch->ids.numel();
  const Tensor below = decoder().has_embedding() ? Tensor() : wait_for("activations", stages_.rank() - 1, tokens);
  slot.pass = std::make_unique<DecoderPass>(decoder(), *batch, context, true);
  const Tensor above = slot.pass->forward(below);
  if (!decoder().has_head()) return stages_.send("activations", above, stages_.rank() + 1);
  slot.loss = slot.pass->loss_sum(above, idle ? 0 : work.scale, slot.gradient, loss);
  if (idle) slot.loss = 0;
}

void PipelinedExecutor::run_backward(const StepWork& work, int64_t microbatch) {
  const Batch* batch = work.microbatch(microbatch);
  if (!batch && !serves()) {
    if (collective()) decoder().idle_backward();
    return;
  }
  if (!batch) batch = &idle_batch();
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  slot.pass->prepare_backward();
  Tensor gradient = std::exchange(slot.gradient, {});
  if (!decoder().has_head() && trainable_here_or_below_) {
    gradient = wait_for("gradients", stages_.rank() + 1, batch->ids.numel());
  }
  const Tensor below = slot.pass->backward(std::move(gradient));
  if (trainable_below_) stages_.send("gradients", below, stages_.rank() - 1);
  slot.pass.reset();
}

// Runs on until the next microbatch's gradient is in the parameters: they come in order.
double PipelinedExecutor::microbatch(const StepWork& work, int64_t) {
  if (done_ > 0) backward_seconds_ += options_.seconds() - returned_;  // that microbatch's gradients joined the others
  for (bool ran_backward = false; !ran_backward;) {
    NIBBLE_CHECK(done_ < actions_.size(), "a microbatch is left");
    const PipelineAction action = actions_[done_++];
    const double start = options_.seconds();
    const double before = waited_;
    action.forward ? run_forward(work, action.microbatch) : run_backward(work, action.microbatch);
    (action.forward ? forward_seconds_ : backward_seconds_) += options_.seconds() - start - (waited_ - before);
    ran_backward = !action.forward;
  }
  ++passes_;
  returned_ = options_.seconds();
  return slots_[static_cast<size_t>(actions_[done_ - 1].microbatch)].loss;
}

void PipelinedExecutor::forward_layers(const Batch* batch, const StepContext& step) {
  if (!batch) return ShardedExecutor::forward_layers(batch, step);
  DecoderPass pass(decoder(), *batch, step, false);
  pass_on(pass, batch->ids.numel());
}

double PipelinedExecutor::forward(const Batch& batch, const StepContext& step, const TokenLoss& loss) {
  DecoderPass pass(decoder(), batch, step, false);
  Tensor none;
  const Tensor above = pass_on(pass, batch.ids.numel());
  return above ? pass.loss_sum(above, 1.0f, none, loss) : 0;
}

double PipelinedExecutor::loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                                   const StepContext& step) {
  return stages_.all_reduce_sum("sum loss", ShardedExecutor::loss_sum(batch, objective, counts, step));
}

Tensor PipelinedExecutor::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  DecoderPass pass(decoder(), batch, step, cache);
  const Tensor above = pass_on(pass, batch.ids.numel());
  const auto documents = static_cast<int64_t>(batch.spans.size());
  Tensor logits = above ? pass.last_logits(above)
                        : Tensor::empty(rank().pool, {documents, decoder().config().head_rows()}, DType::f32, "logits");
  stages_.broadcast("logits", logits, stages_.size() - 1);
  return logits;
}

Tensor PipelinedExecutor::pass_on(DecoderPass& pass, int64_t tokens) {
  Tensor above =
      pass.forward(decoder().has_embedding() ? Tensor() : receive("activations", stages_.rank() - 1, tokens));
  if (decoder().has_head()) return above;
  stages_.send("activations", above, stages_.rank() + 1);
  return {};
}

// Both copies get the sum of both gradients, added in the same order.
void PipelinedExecutor::join_tied_gradients() {
  Tensor own = parallel().tied_gradient();
  if (!own || own.numel() == 0) return;  // on both
  const int last = stages_.size() - 1, other = stages_.rank() == 0 ? last : 0;
  Tensor theirs = Tensor::empty(rank().pool, own.shape(), DType::f32, "tied gradient");
  const Tensor mine = own.clone(rank().pool);
  stages_.send("tied gradients", mine, other);
  stages_.receive("tied gradients", theirs, other);
  ops::add(theirs, own);  // a + b and b + a have the same bits
}

double PipelinedExecutor::squares(const std::vector<Parameter*>& parameters) const {
  return stages_.all_reduce_sum("gradient norm", ShardedExecutor::squares(parameters));
}

PipelinedExecutor::Bubble PipelinedExecutor::bubble() const {
  const double worked = forward_seconds_ + backward_seconds_;
  const double passes = static_cast<double>(std::max<int64_t>(passes_, 1));
  const double mine[] = {forward_seconds_ / passes, backward_seconds_ / passes,
                         waited_ > 0 ? waited_ / (waited_ + worked) : 0};
  MemoryPool pool;
  const Tensor part = Tensor::from<double>(pool, {std::ssize(mine)}, mine);
  Tensor all = Tensor::empty(pool, {stages_.size() * std::ssize(mine)}, DType::f64);
  stages_.all_gather("seconds of stages", part, all);
  const double* of = all.data<const double>();
  std::vector<StagePasses> stages;
  for (int s = 0; s < stages_.size(); ++s) stages.push_back({of[3 * s], of[3 * s + 1]});
  const int64_t count = steps_ > 0 ? passes_ / steps_ : 0;
  const int64_t in_flight = options_.in_flight > 0 ? options_.in_flight : count;
  const ScheduleTime predicted = schedule_time(options_.schedule, stages, count, in_flight, 0);
  return {.measured = of[2], .predicted = predicted.waiting.front()};
}

std::string PipelinedExecutor::summary() const {
  const Bubble bubble = this->bubble();
  return formatted(
      "pipeline: the first stage waited %.0f%% of the time, the schedule of stages as fast as these predicts "
      "%.0f%%",
      100 * bubble.measured, 100 * bubble.predicted);
}

std::unique_ptr<StepExecutor> make_executor(Decoder& decoder, ParallelModel& parallel, const PipelineOptions& options,
                                            RankContext& rank) {
  if (parallel.mesh().shape().pipeline == 1) return std::make_unique<ShardedExecutor>(decoder, parallel, rank);
  return std::make_unique<PipelinedExecutor>(decoder, parallel, options, rank);
}

}  // namespace nibble
