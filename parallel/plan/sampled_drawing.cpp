#include "nibble/parallel/plan/sampled_drawing.h"

#include <algorithm>

#include "nibble/core/models/generation/kv_cache.h"

namespace nibble::detail {

Tensor SampledDrawing::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  constexpr int64_t kEvery = 64;
  const bool alike = is_alike(batch, cache);
  lengths_.clear();
  for (size_t i = 0; i < batch.spans.size(); ++i) {
    lengths_.push_back(cache.length(batch.sequences[i]) + batch.spans[i].q_end - batch.spans[i].q_begin);
  }
  sequences_ = batch.sequences;
  const int64_t length = lengths_.front();
  if (alike && length > kEvery && length % kEvery > 1 && std::ranges::max(lengths_) < longest_ - 1) {
    ++skipped_;
    look_up_(batch);
    cache.advance(batch.spans, cache.prepare(batch.spans, batch.sequences));
    return Tensor::empty(rank().pool, {std::ssize(batch.spans), columns_}, DType::f32, "logits");
  }
  cost_ = StepCost::sum(1, cost_, 1, take_());
  Tensor logits = executor_.next_logits(batch, step, cache);
  columns_ = logits.dim(1);
  const StepCost now = take_();
  if (skipped_ > 0) {
    const double half = static_cast<double>(skipped_) / 2;
    cost_ = StepCost::sum(1, cost_, 1, StepCost::sum(half, last_, half, alike ? now : last_));
  }
  skipped_ = 0;
  last_ = now;
  cost_ = StepCost::sum(1, cost_, 1, now);
  return logits;
}

StepCost SampledDrawing::cost() {
  cost_ = StepCost::sum(1, cost_, static_cast<double>(std::exchange(skipped_, 0)), last_);
  return StepCost::sum(1, std::exchange(cost_, {}), 1, take_());
}

// The texts of the pass before, each with one token more; those that fill a pass up begin anew.
bool SampledDrawing::is_alike(const Batch& batch, const KvCache& cache) const {
  if (batch.sequences != sequences_) return false;
  for (size_t i = 0; i < batch.spans.size(); ++i) {
    const int64_t tokens = batch.spans[i].q_end - batch.spans[i].q_begin, before = cache.length(batch.sequences[i]);
    if (tokens != 1 || (before != lengths_[i] && lengths_[i] != 1)) return false;
  }
  return true;
}

}  // namespace nibble::detail
