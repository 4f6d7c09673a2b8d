#pragma once
// The residual stream of a decoder layer; or several of the same tokens (AltUp: Baykal et al. 2023; Gemma 3n), which
// are f32: stream n of T tokens is rows n T to (n + 1) T.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// sum = x + scale * y: x and sum f32, which may be one tensor; y f32 or bf16; all of the same number of elements.
void add_residual(const Tensor& x, const Tensor& y, float scale, Tensor& sum);

/// y [B T, D]: stream b += the sum over a of coefficients[t, b A + a] times stream a of x [A T, D]; coefficients [T, B
/// A].
void mix_streams_forward(const Tensor& x, const Tensor& coefficients, Tensor& y);
/// dx [A T, D] += gradient, dcoefficients [T, B A] = gradient, from dy [B T, D].
void mix_streams_backward(const Tensor& dy, const Tensor& x, const Tensor& coefficients, Tensor& dx,
                          Tensor& dcoefficients);

/// y [T, D] = x with the root mean square of each row that the row of `like` has: x rms(like) / sqrt(max(mean x^2,
/// 1e-5)).
void match_rms_forward(const Tensor& x, const Tensor& like, Tensor& y);
/// dx = gradient, may be dy; dlike += gradient. All [T, D].
void match_rms_backward(const Tensor& dy, const Tensor& x, const Tensor& like, Tensor& dx, Tensor& dlike);

}  // namespace nibble::ops
