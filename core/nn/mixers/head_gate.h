#pragma once
// A gate for every head: what a head gives times the sigmoid, or the softplus, of one number (LFM3, Ling 2.5; Laguna).

#include "nibble/core/nn/step_context.h"

namespace nibble {

/// [T, H V] in the dtype of `heads` [T, H V]; logits [T, H] f32.
Tensor gate_heads(const Tensor& heads, const Tensor& logits, const StepContext& step, bool softplus = false);
/// The gradient of `heads`, in the dtype of dgated [T, H V]; dlogits [T, H] f32, which may be logits, becomes theirs.
Tensor gate_heads_backward(const Tensor& dgated, const Tensor& heads, const Tensor& logits, const StepContext& step,
                           Tensor& dlogits, bool softplus = false);

}  // namespace nibble
