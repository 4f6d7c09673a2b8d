#pragma once
// Causal convolution of every column by itself with a filter of a few taps: what state spaces (Mamba: Gu and Dao 2023),
// gated delta nets (Yang et al. 2024) and LFM2 put before or in the place of attention.

#include "nibble/core/ops/attention.h"
#include "nibble/core/ops/recurrent/recurrent_state.h"

namespace nibble::ops {

/// y[t, c] = b[c] + the sum over k of w[c, k] x[t - taps + 1 + k, c], of the document's own tokens only.  x [T, C] f32
/// or bf16, w [C, taps] f32, b [C] f32 or undefined, y [T, C] f32 or bf16; `spans` (their queries are what counts)
/// together are all rows. state: null, or rows of (taps - 1) C elements: the last taps - 1 rows of x.
void causal_conv_forward(const Tensor& x, const Tensor& w, const Tensor& b, std::span<const AttentionSpan> spans,
                         RecurrentState* state, Tensor& y);
/// dx [T, C] in the dtype of x, overwritten; dw [C, taps] f32 and db [C] f32 += unless undefined. dy f32 or bf16.
void causal_conv_backward(const Tensor& dy, const Tensor& x, const Tensor& w, std::span<const AttentionSpan> spans,
                          Tensor& dx, Tensor& dw, Tensor& db);

}  // namespace nibble::ops
