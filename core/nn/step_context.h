#pragma once
#include "nibble/core/base/rank_context.h"
#include "nibble/core/tensor/tensor.h"

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

  MemoryPool& pool() const { return rank.pool; }
};

}  // namespace nibble
