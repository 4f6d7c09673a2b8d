#include "nibble/core/nn/norms/norm.h"

#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/norm.h"

namespace nibble {

Norm::Norm(const std::string& name, int64_t size, const NormConfig& config, const ParameterMaker& make)
    : config_(config), size_(size) {
  NIBBLE_CHECK(config.weight || (config.weight_offset == 0 && !config.bias), "a norm without parameters");
  if (config.weight) weight_ = make(name + ".weight", {size});
  if (config.bias) bias_ = make(name + ".bias", {size});
}

Norm::Norm(std::shared_ptr<Parameter> weights, int64_t row, const NormConfig& config)
    : config_(config), size_(weights->value.dim(1)), row_(row), weight_(std::move(weights)) {
  NIBBLE_CHECK(config.weight && !config.bias, "norms that share a parameter have weights only");
}

bool Norm::has_trainable() const { return (weight_ && weight_->trainable) || (bias_ && bias_->trainable); }

Tensor Norm::scale(const StepContext& step) const {
  const float ones = weight_ ? config_.weight_offset : 1.0f;
  if (weight_ && (config_.kind == NormKind::rms || ones == 0)) return own(weight_->value);
  Tensor result = Tensor::from<float>(step.pool(), {size_}, std::vector<float>(static_cast<size_t>(size_), ones));
  if (weight_) ops::add(own(weight_->value), result);
  return result;
}

Tensor Norm::own(const Tensor& weights) const {
  return row_ < 0 || !weights ? weights : weights.rows(row_, row_ + 1).reshape({size_});
}

void Norm::forward(const Tensor& x, Tensor& y, const StepContext& step, NormSaved* saved) const {
  const Shape rows = {x.dim(0)};
  Tensor mean, inv = Tensor::empty(step.pool(), rows, DType::f32, "norm statistics");
  if (config_.kind == NormKind::rms) {
    ops::rms_norm_forward(x, scale(step), config_.eps, config_.weight_offset, y, inv);
  } else {
    mean = Tensor::empty(step.pool(), rows, DType::f32, "norm statistics");
    ops::layer_norm_forward(x, scale(step), bias_ ? bias_->value : Tensor(), config_.eps, y, mean, inv);
  }
  if (saved) *saved = {x, mean, inv};
}

void Norm::backward(const Tensor& dy, const StepContext& step, NormSaved&& saved, Tensor& dx) {
  Tensor dw = weight_ ? own(weight_->gradient) : Tensor();
  if (config_.kind == NormKind::rms) {
    ops::rms_norm_backward(dy, saved.x, scale(step), config_.weight_offset, saved.inv, dx, dw);
  } else {
    Tensor db = bias_ ? bias_->gradient : Tensor();
    ops::layer_norm_backward(dy, saved.x, scale(step), saved.mean, saved.inv, dx, dw, db);
  }
}

void Norm::visit(const ParameterVisitor& visitor) {
  if (weight_) visitor(*weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace nibble
