#pragma once
// Norms of the rows of a weight (one row for each output) and outputs scaled by them: weight-decomposed adapters
// (DoRA: Liu et al. 2024).

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// squares [N] f64 (out) = sums of squares of the rows of w [N, in] f32.
void row_squares(const Tensor& w, Tensor& squares);

/// norms [N] f32 (out) = L2 norms of the rows of W + s B A, and factors [N] f32 (out) = magnitudes [N] f32 / norms,
/// without W at hand: w_squares [N] f64 = row_squares(W), aw [R, N] f32 = A W^T, b [N, R] f32, gram [R, R] f32 = A A^T.
void low_rank_norms(const Tensor& magnitudes, const Tensor& w_squares, const Tensor& aw, const Tensor& b,
                    const Tensor& gram, float s, Tensor& norms, Tensor& factors);

/// rows [n, in] f32: each row is scaled to the length in lengths [n] f32; a zero row stays.
void set_row_norms(const Tensor& lengths, Tensor& rows);

/// y [T, N] = x [T, N] with column n multiplied by factors[n] + offset; factors [N] f32; x, y f32 or bf16 of one dtype,
/// maybe the same tensor.
void scale_columns(const Tensor& x, const Tensor& factors, float offset, Tensor& y);
/// The gradient of scale_columns with respect to magnitudes, norms held constant: dmagnitudes [N] f32 += the sum over t
/// of dy[t, n] x[t, n] / norms[n]. dy and x are f32 or bf16 each.
void scale_columns_backward(const Tensor& dy, const Tensor& x, const Tensor& norms, Tensor& dmagnitudes);

}  // namespace nibble::ops
