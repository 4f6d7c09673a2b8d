#pragma once
#include "nibble/core/base/rank_context.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

struct RouterBalance;

/// What a forward or backward pass needs besides tensors.
struct StepContext {
  RankContext& rank;
  DType compute_dtype = DType::f32;  ///< dtype of the products' inputs: f32 or bf16
  bool training = false;             ///< dropout is active
  uint64_t step = 0;                 ///< optimizer step, key of dropout
  Tensor row_keys;                   ///< [T] i64, see ops::dropout; undefined outside training
  bool adapters_enabled = true;      ///< false: a pass of the base alone, as if no adapter were attached
  RouterBalance* balance = nullptr;  ///< of the experts' routers, where the step's loss has it
  double neftune_noise_alpha = 0;    ///< of the noise on embeddings in training; 0: none

  MemoryPool& pool() const { return rank.pool; }
};

/// x in the dtype: itself, or a copy.
inline Tensor in_dtype(const Tensor& x, DType dtype, const StepContext& step) {
  if (x.dtype() == dtype) return x;
  Tensor result = Tensor::empty(step.pool(), x.shape(), dtype, "activations in another dtype");
  ops::cast(x, result);
  return result;
}
inline Tensor in_compute_dtype(const Tensor& x, const StepContext& step) {
  return in_dtype(x, step.compute_dtype, step);
}

/// Columns [begin, begin + count) of every row, as a copy.
inline Tensor columns_of(const Tensor& x, int64_t begin, int64_t count, const StepContext& step) {
  Tensor part = Tensor::empty(step.pool(), {x.dim(0), count}, x.dtype(), "some columns");
  ops::copy_columns_out(x, begin, part);
  return part;
}

}  // namespace nibble
