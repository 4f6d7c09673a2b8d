#pragma once
// RMSNorm of groups of columns together with a gate: the output of state spaces and gated delta nets.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

struct GatedNormParams {
  int64_t group = 0;  ///< columns under one norm
  float eps = 1e-6f;
  bool sigmoid_gate = false;  ///< sigmoid instead of silu (Kimi Linear), with the norm first
  bool gate_first = false;    ///< norm(x silu(gate)) w (Mamba-2), else norm(x) w silu(gate) (gated delta net)
};

/// x [T, W] f32, gate [T, W] f32 or bf16, y [T, W] in the dtype of the gate; w [n] f32, n = W or a divisor of it: the
/// weights repeat.
void gated_norm_forward(const Tensor& x, const Tensor& gate, const Tensor& w, const GatedNormParams& params, Tensor& y);
/// dx [T, W] f32 and dgate in its dtype, overwritten; dw [n] f32 += unless undefined.
void gated_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, const Tensor& w,
                         const GatedNormParams& params, Tensor& dx, Tensor& dgate, Tensor& dw);

}  // namespace nibble::ops
