#pragma once
// The residual stream of a decoder layer.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// sum = x + scale * y: x and sum f32, which may be one tensor; y f32 or bf16; all of the same number of elements.
void add_residual(const Tensor& x, const Tensor& y, float scale, Tensor& sum);

}  // namespace nibble::ops
