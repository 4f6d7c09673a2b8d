#include "nibble/parallel/pipeline/pipeline.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/pipeline/schedule_time.h"

namespace nibble {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool has_trainable(Decoder& stage) {
  bool found = false;
  stage.visit([&](Parameter& parameter) { found = found || parameter.trainable; });
  return found;
}

}  // namespace

// A microbatch between its forward and its backward pass.
struct Pipeline::Slot {
  std::unique_ptr<DecoderPass> pass;
  Tensor gradient;  // of the stream above the last layer, on the last stage
  double loss = 0;
};

Pipeline::Pipeline(Decoder& stage, const PipelineOptions& options, const Mesh& mesh, RankContext& rank)
    : stage_(stage), options_(options), stages_(mesh.pipeline()), rank_(rank) {
  if (stages_.size() == 1) return;
  const double mine = has_trainable(stage_) ? 1 : 0;
  MemoryPool pool;
  const Tensor part = Tensor::from<double>(pool, {1}, std::span<const double>(&mine, 1));
  Tensor all = Tensor::empty(pool, {stages_.size()}, DType::f64);
  stages_.all_gather("trainable stages", part, all);
  for (int s = 0; s < stages_.rank(); ++s) trainable_below_ = trainable_below_ || all.data<const double>()[s] > 0;
  trainable_here_or_below_ = trainable_below_ || mine > 0;
  stage_.set_trainable_below(trainable_below_);
  if (!stage_.config().tied_head || !(stage_.has_embedding() || stage_.has_head())) return;
  const std::string name = stage_.config().names.embedding + ".weight";
  stage_.visit([&](Parameter& parameter) {
    if (parameter.name == name && parameter.trainable) tied_ = &parameter;
  });
  tied_gradient_ = [this] { return tied_->gradient; };
}

Pipeline::~Pipeline() = default;

Tensor Pipeline::receive(const char* operation, int from, int64_t tokens) {
  Tensor value = Tensor::empty(rank_.pool, {tokens, stage_.config().width}, DType::f32, operation);
  stages_.receive(operation, value, from);
  return value;
}

Tensor Pipeline::wait_for(const char* operation, int from, int64_t tokens) {
  const auto start = Clock::now();
  Tensor value = receive(operation, from, tokens);
  waited_ += seconds_since(start);
  return value;
}

void Pipeline::begin_step(std::span<const Batch> microbatches, const Batch& spare, int64_t count, float scale,
                          const StepContext& step) {
  batches_.clear();
  spare_ = &spare;
  for (const Batch& batch : microbatches) batches_.push_back(batch.ids.numel() > 0 ? &batch : spare_);
  batches_.resize(std::max(static_cast<size_t>(count), batches_.size()), spare_);
  scale_ = scale;
  step_ = std::make_unique<StepContext>(step);
  const int64_t all = static_cast<int64_t>(batches_.size());
  actions_ = pipeline_actions(options_.schedule, stages_.size(), stages_.rank(), all,
                              options_.in_flight > 0 ? options_.in_flight : std::max<int64_t>(all, 1));
  done_ = 0;
  slots_.clear();
  slots_.resize(batches_.size());
}

void Pipeline::forward(int64_t microbatch) {
  const Batch& batch = *batches_[static_cast<size_t>(microbatch)];
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  StepContext context = *step_;
  context.row_keys = batch.row_keys;
  const int64_t tokens = batch.ids.numel();
  const Tensor below = stage_.has_embedding() ? Tensor() : wait_for("activations", stages_.rank() - 1, tokens);
  slot.pass = std::make_unique<DecoderPass>(stage_, batch, context, true);
  const Tensor above = slot.pass->forward(below);
  if (!stage_.has_head()) return stages_.send("activations", above, stages_.rank() + 1);
  const float scale = &batch == spare_ ? 0.0f : scale_;
  slot.loss = slot.pass->loss_sum(above, scale, slot.gradient);
}

void Pipeline::backward(int64_t microbatch) {
  Slot& slot = slots_[static_cast<size_t>(microbatch)];
  slot.pass->prepare_backward();
  Tensor gradient = std::exchange(slot.gradient, {});
  if (!stage_.has_head() && trainable_here_or_below_) {
    gradient = wait_for("gradients", stages_.rank() + 1, batches_[static_cast<size_t>(microbatch)]->ids.numel());
  }
  const Tensor below = slot.pass->backward(std::move(gradient));
  if (trainable_below_) stages_.send("gradients", below, stages_.rank() - 1);
  slot.pass.reset();
}

double Pipeline::next() {
  if (done_ == 0) {
    ++steps_;
  } else {
    backward_seconds_ += seconds_since(returned_);  // that microbatch's gradients joined the others
  }
  for (bool ran_backward = false; !ran_backward;) {
    NIBBLE_CHECK(done_ < actions_.size(), "a microbatch is left");
    const PipelineAction action = actions_[done_++];
    const auto start = Clock::now();
    const double before = waited_;
    action.forward ? forward(action.microbatch) : backward(action.microbatch);
    (action.forward ? forward_seconds_ : backward_seconds_) += seconds_since(start) - (waited_ - before);
    ran_backward = !action.forward;
  }
  ++passes_;
  returned_ = Clock::now();
  const auto microbatch = static_cast<size_t>(actions_[done_ - 1].microbatch);
  return batches_[microbatch] == spare_ ? 0.0 : slots_[microbatch].loss;
}

double Pipeline::loss_sum(const Batch& batch, const StepContext& step) {
  DecoderPass pass(stage_, batch, step, false);
  Tensor none;
  const Tensor above = pass_on(pass, batch.ids.numel());
  const double loss = above ? pass.loss_sum(above, 1.0f, none) : 0;
  return stages_.all_reduce_sum("sum loss", loss);
}

Tensor Pipeline::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  DecoderPass pass(stage_, batch, step, cache);
  const Tensor above = pass_on(pass, batch.ids.numel());
  const auto documents = static_cast<int64_t>(batch.spans.size());
  Tensor logits = above ? pass.last_logits(above)
                        : Tensor::empty(rank_.pool, {documents, stage_.config().vocab_size}, DType::f32, "logits");
  stages_.broadcast("logits", logits, stages_.size() - 1);
  return logits;
}

Tensor Pipeline::pass_on(DecoderPass& pass, int64_t tokens) {
  const Tensor above =
      pass.forward(stage_.has_embedding() ? Tensor() : receive("activations", stages_.rank() - 1, tokens));
  if (stage_.has_head()) return above;
  stages_.send("activations", above, stages_.rank() + 1);
  return {};
}

// Both copies get the sum of both gradients, added in the same order.
void Pipeline::join_tied_gradients() {
  if (!tied_) return;
  const int last = stages_.size() - 1, other = stages_.rank() == 0 ? last : 0;
  Tensor own = tied_gradient_();
  if (own.numel() == 0) return;  // on both
  Tensor theirs = Tensor::empty(rank_.pool, own.shape(), DType::f32, "tied gradient");
  const Tensor mine = own.clone(rank_.pool);
  stages_.send("tied gradients", mine, other);
  stages_.receive("tied gradients", theirs, other);
  ops::add(theirs, own);  // a + b and b + a have the same bits
}

StepLayout Pipeline::over_stages(StepLayout layout) {
  if (stages_.size() == 1) return layout;
  const auto sum = layout.sum_gradients;
  layout.sum_gradients = [this, sum](GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                                     const std::function<double(int64_t)>& run) {
    const double loss =
        sum ? sum(kind, parameters, count, run) : sum_gradients(kind, parameters, count, run, rank_.pool);
    join_tied_gradients();
    return stages_.all_reduce_sum("sum loss", stage_.has_head() ? loss : 0.0);
  };
  const auto squares = layout.squares;
  layout.squares = [this, squares](const std::vector<Parameter*>& parameters) {
    std::vector<Parameter*> counted = parameters;
    if (!stage_.has_embedding()) std::erase(counted, tied_);  // the first stage counts it
    const double mine = squares ? squares(counted) : gradient_squares(counted);
    return stages_.all_reduce_sum("gradient norm", mine);
  };
  layout.idle = [this] { next(); };
  layout.sum_counts = layout.sum_counts ? layout.sum_counts : [](Tensor&) {};
  return layout;
}

Pipeline::Bubble Pipeline::bubble() const {
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

}  // namespace nibble
