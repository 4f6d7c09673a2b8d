#include "nibble/core/nn/linear.h"

#include <utility>

#include "nibble/core/ops/elementwise.h"

namespace nibble {

Linear::Linear(std::string name, std::unique_ptr<LinearWeight> weight, std::shared_ptr<Parameter> bias)
    : name_(std::move(name)), weight_(std::move(weight)), bias_(std::move(bias)) {
  NIBBLE_CHECK(weight_ != nullptr, name_ + " has no weight");
  NIBBLE_CHECK(bias_ == nullptr || bias_->value.numel() == weight_->out_features(), name_ + ": shape of the bias");
}

void Linear::set_weight(std::unique_ptr<LinearWeight> weight) {
  weight_ = std::move(weight);
  weight_->set_int8(int8_);
}

void Linear::set_int8(MemoryPool* pool) {
  if (exact_) return;
  int8_ = pool;
  weight_->set_int8(pool);
}

bool Linear::has_trainable() const {
  return weight_->trainable() || (bias_ && bias_->trainable) || (adapter_ && adapter_->trainable());
}

void Linear::forward(const Tensor& x, Tensor& y, const StepContext& step, LinearSaved* saved) {
  const Adapter* adapter = adapter_of(step);
  AdapterSaved* adapter_saved = saved ? &saved->adapter : nullptr;
  std::optional<ops::LowRankEpilogue> update;
  if (adapter) update = adapter->low_rank_forward(x, step, adapter_saved);
  weight_->forward(x, y, false, update ? &*update : nullptr);
  if (adapter && !update) adapter->forward(x, *weight_, y, step, adapter_saved);
  if (bias_) {
    if (bias_->value.dtype() == DType::f32 && bias_->value.aligned()) {
      ops::add_bias(bias_->value, y);
    } else {  // a frozen bias may stay as the checkpoint has it
      Tensor bias = Tensor::empty(step.pool(), bias_->value.shape(), DType::f32, bias_->name);
      ops::cast(bias_->value, bias);
      ops::add_bias(bias, y);
    }
  }
  if (saved && (weight_->trainable() || adapter)) saved->x = x;
}

void Linear::forward_save_only(const Tensor& x, DType dtype, const StepContext& step, LinearSaved& saved) {
  const Adapter* adapter = adapter_of(step);
  if (adapter && !adapter->low_rank_forward(x, step, &saved.adapter)) {
    Tensor y = Tensor::empty(step.pool(), {x.dim(0), out_features()}, dtype, "output of " + name_);
    return forward(x, y, step, &saved);
  }
  if (weight_->trainable() || adapter) saved.x = x;
}

void Linear::backward(const Tensor& dy, const StepContext& step, LinearSaved&& saved, Tensor* dx, bool accumulate) {
  if (bias_ && bias_->trainable) ops::bias_backward(dy, bias_->gradient);
  AdapterGradient gradient{.base = dy, .tensors = {}};
  if (Adapter* adapter = adapter_of(step)) {
    gradient = adapter->backward(dy, *weight_, step);
    if (adapter->trainable()) adapter->accumulate_gradients(gradient, dy, saved.x, step, saved.adapter);
    saved.adapter = {};
  }
  if (weight_->trainable()) weight_->backward_weight(gradient.base, saved.x);
  if (dx) backward_input(gradient, dy, step, *dx, accumulate);
}

void Linear::backward_input(const AdapterGradient& gradient, const Tensor& dy, const StepContext& step, Tensor& dx,
                            bool accumulate) const {
  const Adapter* adapter = adapter_of(step);
  if (adapter && !gradient.update) {
    adapter->backward_input(gradient, dy, *weight_, step, dx, accumulate);
    accumulate = true;
  }
  weight_->backward_input(gradient.base, dx, accumulate, gradient.update ? &*gradient.update : nullptr);
}

void Linear::transposed(const Tensor& dy, Tensor& x, const StepContext& step) const {
  const Adapter* adapter = adapter_of(step);
  backward_input(adapter ? adapter->backward(dy, *weight_, step) : AdapterGradient{.base = dy, .tensors = {}}, dy, step,
                 x, false);
}

void Linear::visit(const ParameterVisitor& visitor) {
  if (Parameter* weight = weight_->parameter(); weight && weight_->is_first()) visitor(*weight);
  if (bias_) visitor(*bias_);
  if (adapter_) adapter_->visit(visitor);
}

}  // namespace nibble
