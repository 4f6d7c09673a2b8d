#include "nibble/core/nn/mixers/head_gate.h"

#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/recurrent/time_step.h"

namespace nibble {

namespace {

Tensor zeros(const Tensor& logits, const StepContext& step) {
  return Tensor::zeros(step.pool(), {logits.dim(1)}, DType::f32, "gates of heads");
}

// [T H] f32. A time step of a state space is the softplus of what it is computed from.
Tensor weights_of(const Tensor& logits, const StepContext& step, bool softplus) {
  Tensor weights = Tensor::empty(step.pool(), logits.shape(), DType::f32, "gates of heads");
  if (softplus) {
    Tensor unused = Tensor::empty(step.pool(), logits.shape(), DType::f32, "gates of heads");
    ops::time_step_forward(logits, zeros(logits, step), zeros(logits, step), ops::kAnyStep, weights, unused);
  } else {
    ops::activation_forward(ops::Activation::sigmoid, logits, weights);
  }
  return weights.reshape({logits.numel()});
}

// [T H, V]
Tensor by_head(const Tensor& heads, const Tensor& logits) {
  return heads.reshape({logits.numel(), heads.numel() / logits.numel()});
}

}  // namespace

Tensor gate_heads(const Tensor& heads, const Tensor& logits, const StepContext& step, bool softplus) {
  const Tensor rows = by_head(heads, logits);
  Tensor gated = Tensor::empty(step.pool(), rows.shape(), rows.dtype(), "gated attention heads");
  ops::scale_rows(rows, weights_of(logits, step, softplus), gated);
  return gated.reshape(heads.shape());
}

Tensor gate_heads_backward(const Tensor& dgated, const Tensor& heads, const Tensor& logits, const StepContext& step,
                           Tensor& dlogits, bool softplus) {
  const Tensor rows = by_head(dgated, logits), weights = weights_of(logits, step, softplus);
  Tensor dheads = Tensor::empty(step.pool(), rows.shape(), rows.dtype(), "gradient of heads");
  Tensor dweights = Tensor::empty(step.pool(), weights.shape(), DType::f32, "gradient of gates");
  ops::scale_rows_backward(rows, by_head(heads, logits), weights, dheads, dweights);
  if (softplus) {
    const Tensor no_decay = Tensor::zeros(step.pool(), logits.shape(), DType::f32, "gates of heads");
    Tensor none, of_logits = Tensor::empty(step.pool(), logits.shape(), DType::f32, "gradient of gates");
    ops::time_step_backward(dweights.reshape(logits.shape()), no_decay, logits, zeros(logits, step),
                            zeros(logits, step), ops::kAnyStep, of_logits, none, none);
    dlogits = of_logits;
    return dheads.reshape(dgated.shape());
  }
  ops::activation_backward(ops::Activation::sigmoid, dweights.reshape(logits.shape()), logits, dlogits);
  return dheads.reshape(dgated.shape());
}

}  // namespace nibble
