#pragma once
// Rotary position embedding (Su et al. 2021). Two layouts of the pairs that are rotated: halves (Hugging Face's:
// element i is paired with i + rot / 2) and neighbours (the paper's, GPT-J, Cohere: 2 i with 2 i + 1).

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

enum class RopePairs : uint8_t { halves, neighbours };

/// Rotates `rot` of the K elements of every head, from `begin` on, in place (rot / 2 = columns of cos). x [T, H * K]
/// f32 or bf16; positions [T] i32; cos, sin [P, rot / 2] f32 with P > every position (scaling of frequencies and
/// magnitudes is in the tables). inverse: rotate by the negative angle, which is the backward pass.
void rope(Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool inverse,
          RopePairs pairs = RopePairs::halves, int64_t begin = 0);

}  // namespace nibble::ops
