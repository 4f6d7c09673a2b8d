#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// x = cap * tanh(x / cap), f32, in place (Gemma 2's cap on logits; the loss has its own inside cross_entropy).
void softcap(Tensor& x, float cap);

}  // namespace nibble::ops
