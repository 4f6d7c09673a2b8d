#pragma once
// RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016). Statistics and sums in f32.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// y = x * inv_rms * (weight_offset + w).  x [T, D] f32, w [D] f32, y [T, D] f32 or bf16, inv_rms [T] f32 (out).
/// weight_offset is 0 (Llama) or 1 (Gemma).
void rms_norm_forward(const Tensor& x, const Tensor& w, float eps, float weight_offset, Tensor& y, Tensor& inv_rms);
/// dx [T, D] f32 += gradient; dw [D] f32 += gradient unless undefined. dy [T, D] f32 or bf16.
void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, float weight_offset, const Tensor& inv_rms,
                       Tensor& dx, Tensor& dw);

/// y = (x - mean) * inv_std * w + b.  x [T, D] f32, w and b [D] f32 (b may be undefined), y f32 or bf16,
/// mean and inv_std [T] f32 (out).
void layer_norm_forward(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y, Tensor& mean,
                        Tensor& inv_std);
/// dx [T, D] f32 +=; dw, db [D] f32 += unless undefined.
void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& inv_std,
                         Tensor& dx, Tensor& dw, Tensor& db);

}  // namespace nibble::ops
