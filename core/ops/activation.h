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
};

/// y = f(x), same shape
void activation_forward(Activation f, const Tensor& x, Tensor& y);
/// dx = dy * f'(x)
void activation_backward(Activation f, const Tensor& dy, const Tensor& x, Tensor& dx);

/// y = f(gate) * up, all [T, F]
void gated_forward(Activation f, const Tensor& gate, const Tensor& up, Tensor& y);
/// dgate and dup from dy; y_again (may be undefined) receives f(gate) * up, so that forward need not keep it.
void gated_backward(Activation f, const Tensor& dy, const Tensor& gate, const Tensor& up, Tensor& dgate, Tensor& dup,
                    Tensor& y_again);

}  // namespace nibble::ops
