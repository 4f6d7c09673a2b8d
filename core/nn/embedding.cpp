#include "nibble/core/nn/embedding.h"

#include <algorithm>
#include <vector>

#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"

namespace nibble {

namespace {

// ids, with -1 in the place of `padding`.
Tensor without(int32_t padding, const Tensor& ids, const StepContext& step) {
  const std::span<const int32_t> all = ids.span<const int32_t>();
  if (padding < 0 || std::find(all.begin(), all.end(), padding) == all.end()) return ids;
  std::vector<int32_t> rest(all.begin(), all.end());
  std::replace(rest.begin(), rest.end(), padding, -1);
  return Tensor::from<int32_t>(step.pool().host(), ids.shape(), rest);
}

}  // namespace

void Embedding::set_padding(int32_t id) {
  const int64_t row = table_->shard ? id - table_->shard.rows.front().begin : id;
  padding_ = row >= 0 && row < table_->value.dim(0) ? static_cast<int32_t>(row) : -1;
}

void Embedding::forward(const Tensor& ids, int64_t offset, float scale, Tensor& x, const StepContext& step) const {
  const Tensor table = table_->value.rows(offset, table_->value.dim(0));
  const bool adapted = adapter_ && step.adapters_enabled;
  ops::embedding_forward(ids, table, adapted ? 1.0f : scale, x);
  if (!adapted) return;
  adapter_->forward(ids, table, x, step);
  if (scale != 1.0f) ops::scale(x, scale);
}

void Embedding::backward(const Tensor& ids, int64_t offset, float scale, const Tensor& gradient,
                         const StepContext& step) {
  const Tensor summed = without(padding_, ids, step);
  if (table_->trainable) {
    Tensor sums = table_->gradient.rows(offset, table_->gradient.dim(0));
    ops::embedding_backward(summed, gradient, scale, sums);
  }
  if (!adapter_ || !step.adapters_enabled || !adapter_->trainable()) return;
  const Tensor table = table_->value.rows(offset, table_->value.dim(0));
  if (scale == 1.0f) return adapter_->backward(ids, summed, table, gradient, step);
  Tensor scaled = gradient.clone(step.pool());
  ops::scale(scaled, scale);
  adapter_->backward(ids, summed, table, scaled, step);
}

void Embedding::visit(const ParameterVisitor& visitor) {
  visitor(*table_);
  if (adapter_) adapter_->visit(visitor);
}

}  // namespace nibble
