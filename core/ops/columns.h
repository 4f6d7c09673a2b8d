#pragma once
// Columns of a row-major matrix: how the parts of a fused projection (query, key, value in one) are taken and put back.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// part [T, w] = x [T, W] columns [begin, begin + w). f32 or bf16, both of one dtype.
void copy_columns_out(const Tensor& x, int64_t begin, Tensor& part);
/// x [T, W] columns [begin, begin + w) = part [T, w].
void copy_columns_in(const Tensor& part, int64_t begin, Tensor& x);

}  // namespace nibble::ops
