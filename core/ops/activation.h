#pragma once
// Activations of the MLP, plain and gated (SwiGLU, GEGLU: Shazeer 2020). Arithmetic in f32; tensors f32 or bf16.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

enum class Activation : uint8_t {
  identity,  ///< of gates that are numbers of any size (LFM2)
  silu,
  gelu_erf,
  gelu_tanh,
  gelu_sigmoid,  ///< x sigmoid(1.702 x), "quick_gelu"
  relu,
  relu_squared,
  sigmoid,  ///< of gates
  tanh,
};

/// y = f(x), same shape
void activation_forward(Activation f, const Tensor& x, Tensor& y);
/// dx = dy * f'(x)
void activation_backward(Activation f, const Tensor& dy, const Tensor& x, Tensor& dx);

/// y = f(gate) * up, all [T, F]
void gated_forward(Activation f, const Tensor& gate, const Tensor& up, Tensor& y);
/// dgate and dup from dy; y_recomputed (may be undefined) receives f(gate) * up, so that forward need not keep it.
void gated_backward(Activation f, const Tensor& dy, const Tensor& gate, const Tensor& up, Tensor& dgate, Tensor& dup,
                    Tensor& y_recomputed);

/// xIELU (Huang et al. 2024): y = ap x^2 + x / 2 where x > 0, else an (e^x - 1 - x) + x / 2, with ap =
/// softplus(alpha_p) and an = 1/2 + softplus(alpha_n), both [1] f32.
void xielu_forward(const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n, Tensor& y);
/// dx = dy * f'(x), which may take the place of x; dalpha_p and dalpha_n [1] f32 += gradient unless undefined.
void xielu_backward(const Tensor& dy, const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n, Tensor& dx,
                    Tensor& dalpha_p, Tensor& dalpha_n);

/// y = max(0, x - mean - deviations * std): of each row of x [T, F] about the part that is so many standard deviations
/// above its mean (Gemma 3n). f32 or bf16; std of the whole row, not corrected.
void gaussian_topk_forward(const Tensor& x, float deviations, Tensor& y);
/// dx = gradient, may be dy.
void gaussian_topk_backward(const Tensor& dy, const Tensor& x, float deviations, Tensor& dx);

/// y = f(min(gate, limit)) * (1 + up held within +-limit) (gpt-oss)
void clamped_gated_forward(Activation f, float limit, const Tensor& gate, const Tensor& up, Tensor& y);
/// dgate and dup from dy, which may be gate and up.
void clamped_gated_backward(Activation f, float limit, const Tensor& dy, const Tensor& gate, const Tensor& up,
                            Tensor& dgate, Tensor& dup);

}  // namespace nibble::ops
