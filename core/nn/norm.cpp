#include "nibble/core/nn/norm.h"

#include "nibble/core/ops/norm.h"

namespace nibble {

Norm::Norm(const std::string& name, int64_t size, const NormConfig& config, const ParameterMaker& make)
    : config_(config), weight_(make(name + ".weight", {size})) {
  if (config.bias) bias_ = make(name + ".bias", {size});
}

bool Norm::has_trainable() const { return weight_->trainable || (bias_ && bias_->trainable); }

void Norm::forward(const Tensor& x, Tensor& y, const StepContext& step, NormSaved* saved) const {
  const Shape rows = {x.dim(0)};
  Tensor mean, inv = Tensor::empty(step.pool(), rows, DType::f32, "norm statistics");
  if (config_.kind == NormKind::rms) {
    ops::rms_norm_forward(x, weight_->value, config_.eps, config_.weight_offset, y, inv);
  } else {
    mean = Tensor::empty(step.pool(), rows, DType::f32, "norm statistics");
    ops::layer_norm_forward(x, weight_->value, bias_ ? bias_->value : Tensor(), config_.eps, y, mean, inv);
  }
  if (saved) *saved = {x, mean, inv};
}

void Norm::backward(const Tensor& dy, const StepContext&, NormSaved&& saved, Tensor& dx) {
  Tensor dw = weight_->gradient;
  if (config_.kind == NormKind::rms) {
    ops::rms_norm_backward(dy, saved.x, weight_->value, config_.weight_offset, saved.inv, dx, dw);
  } else {
    Tensor db = bias_ ? bias_->gradient : Tensor();
    ops::layer_norm_backward(dy, saved.x, weight_->value, saved.mean, saved.inv, dx, dw, db);
  }
}

void Norm::visit(const ParameterVisitor& visitor) {
  visitor(*weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace nibble
