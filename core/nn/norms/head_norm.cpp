#include "nibble/core/nn/norms/head_norm.h"

#include <algorithm>

#include "nibble/core/ops/columns.h"

namespace nibble {

HeadNorm::HeadNorm(const std::string& name, const HeadNormConfig& config, int64_t heads, int64_t head_size,
                   const ParameterMaker& make)
    : row_(config.kind == HeadNormKind::whole ? heads * head_size : head_size),
      one_parameter_(config.kind == HeadNormKind::rows) {
  if (one_parameter_) {
    const std::shared_ptr<Parameter> weights = make(name + ".weight", {heads, head_size});
    for (int64_t h = 0; h < heads; ++h) norms_.emplace_back(weights, h, config.norm);
    return;
  }
  if (config.kind != HeadNormKind::every_head) {
    norms_.emplace_back(name, row_, config.norm, make);
    return;
  }
  for (int64_t h = 0; h < heads; ++h)
    norms_.emplace_back(name + ".norms." + std::to_string(h), row_, config.norm, make);
}

bool HeadNorm::has_trainable() const {
  return std::any_of(norms_.begin(), norms_.end(), [](const Norm& norm) { return norm.has_trainable(); });
}

void HeadNorm::forward(const Tensor& x, Tensor& y, const StepContext& step, HeadNormSaved* saved) const {
  if (saved) saved->resize(norms_.size());
  if (norms_.size() == 1) {
    const Shape rows = {x.numel() / row_, row_};
    Tensor normed = y.reshape(rows);
    return norms_[0].forward(x.reshape(rows), normed, step, saved ? &saved->front() : nullptr);
  }
  for (size_t h = 0; h < norms_.size(); ++h) {
    Tensor head = Tensor::empty(step.pool(), {x.dim(0), row_}, x.dtype(), "head");
    Tensor normed = Tensor::empty(step.pool(), head.shape(), y.dtype(), "head");
    ops::copy_columns_out(x, static_cast<int64_t>(h) * row_, head);
    norms_[h].forward(head, normed, step, saved ? &(*saved)[h] : nullptr);
    ops::copy_columns_in(normed, static_cast<int64_t>(h) * row_, y);
  }
}

void HeadNorm::backward(const Tensor& dy, const StepContext& step, HeadNormSaved&& saved, Tensor& dx) {
  NIBBLE_CHECK(saved.size() == norms_.size(), "what a norm of heads kept");
  if (norms_.size() == 1) {
    const Shape rows = {dy.numel() / row_, row_};
    Tensor to = dx.reshape(rows);
    return norms_[0].backward(dy.reshape(rows), step, std::move(saved.front()), to);
  }
  for (size_t h = 0; h < norms_.size(); ++h) {
    const int64_t column = static_cast<int64_t>(h) * row_;
    Tensor gradient = Tensor::empty(step.pool(), {dy.dim(0), row_}, dy.dtype(), "head gradient");
    Tensor to = Tensor::empty(step.pool(), gradient.shape(), DType::f32, "head gradient");
    ops::copy_columns_out(dy, column, gradient);
    ops::copy_columns_out(dx, column, to);
    norms_[h].backward(gradient, step, std::move(saved[h]), to);
    ops::copy_columns_in(to, column, dx);
  }
}

void HeadNorm::visit(const ParameterVisitor& visitor) {
  if (one_parameter_) return norms_.front().visit(visitor);
  for (Norm& norm : norms_) norm.visit(visitor);
}

}  // namespace nibble
