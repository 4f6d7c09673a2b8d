#include "nibble/core/nn/mixers/causal_conv.h"

namespace nibble {

CausalConv::CausalConv(const std::string& name, int64_t width, int64_t taps, bool bias, const ParameterMaker& make)
    : weight_(make(name + ".weight", {width, 1, taps})), bias_(bias ? make(name + ".bias", {width}) : nullptr) {}

bool CausalConv::has_trainable() const { return weight_->trainable || (bias_ && bias_->trainable); }

void CausalConv::forward(const Tensor& x, std::span<const ops::AttentionSpan> spans, ops::RecurrentState* state,
                         Tensor& y) const {
  ops::causal_conv_forward(x, weight_->value, bias_ ? bias_->value : Tensor(), spans, state, y);
}

void CausalConv::backward(const Tensor& dy, const Tensor& x, std::span<const ops::AttentionSpan> spans, Tensor& dx) {
  Tensor none;
  ops::causal_conv_backward(dy, x, weight_->value, spans, dx, weight_->gradient, bias_ ? bias_->gradient : none);
}

void CausalConv::visit(const ParameterVisitor& visitor) {
  visitor(*weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace nibble
