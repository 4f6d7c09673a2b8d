#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Names the random numbers of one dropout site. An element's number depends on (seed, step, site, row key, column)
/// only: not on batch layout, thread count or rank.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t site = 0;         ///< a number of its own for each place in the model
  int64_t first_column = 0;  ///< where x begins in the whole row, of which it may be a part
};

/// y = x * keep / (1 - p), keep drawn with Philox. x, y [T, D] f32 or bf16 of one dtype (may be the same tensor);
/// row_keys [T] i64: (global sample index << 32) + position in the sample. 0 <= p < 1.
/// Backward is the same function applied to dy.
void dropout(const Tensor& x, const Tensor& row_keys, float p, const DropoutKey& key, Tensor& y);

}  // namespace nibble::ops
