#pragma once
// Rotary position embedding (Su et al. 2021) in the half-split form of Hugging Face: element i is paired with i +
// rot/2.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Rotates the first `rot` of K elements of every head in place (rot / 2 = columns of cos). x [T, H * K] f32 or bf16;
/// positions [T] i32; cos, sin [P, rot / 2] f32 with P > every position (scaling of frequencies and magnitudes is in
/// the tables). inverse: rotate by the negative angle, which is the backward pass.
void rope(Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool inverse);

}  // namespace nibble::ops
