#pragma once
// Columns of a row-major matrix: how the parts of a fused projection (query, key, value in one) are taken and put back.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// part [T, w] = x [T, W] columns [begin, begin + w). Any dtype, the same for both.
void copy_columns_out(const Tensor& x, int64_t begin, Tensor& part);
/// x [T, W] columns [begin, begin + w) = part [T, w].
void copy_columns_in(const Tensor& part, int64_t begin, Tensor& x);
/// y [W, T] = the transpose of x [T, W]; f32, bf16 or f16, both of one dtype.
void transpose(const Tensor& x, Tensor& y);

}  // namespace nibble::ops
