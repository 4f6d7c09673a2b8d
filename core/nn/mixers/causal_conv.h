#pragma once
// The short filters of convolutional mixers, with their parameters.

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/step_context.h"
#include "nibble/core/ops/recurrent/causal_conv.h"

namespace nibble {

class CausalConv {
 public:
  /// name: module path; its parameters are name + ".weight" [width, 1, taps], as Conv1d has them, and name + ".bias".
  CausalConv(const std::string& name, int64_t width, int64_t taps, bool bias, const ParameterMaker& make);

  bool has_trainable() const;
  /// What of a sequence its next tokens see, see ops::RecurrentState.
  int64_t state_size() const { return weight_->value.numel() - weight_->value.dim(0); }
  /// y [T, width] f32 or bf16 from x [T, width] f32 or bf16.
  void forward(const Tensor& x, std::span<const ops::AttentionSpan> spans, ops::RecurrentState* state, Tensor& y) const;
  /// dx in the dtype of x, overwritten; accumulates the parameters' gradients.
  void backward(const Tensor& dy, const Tensor& x, std::span<const ops::AttentionSpan> spans, Tensor& dx);
  void visit(const ParameterVisitor& visitor);

 private:
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace nibble
