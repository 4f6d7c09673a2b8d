#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// x = min(max(x, -limit), limit) in place, f32 or bf16. `inside`, unless undefined, u8 of as many elements: 1 where x
/// was from -limit to limit, else 0.
void clip(Tensor& x, float limit, Tensor& inside);
/// dx f32 or bf16, in place: 0 where the element was clipped.
void clip_backward(const Tensor& inside, Tensor& dx);

}  // namespace nibble::ops
