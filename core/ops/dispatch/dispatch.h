#pragma once
// What the dispatching of all ops shares.

#include <string>

#include "nibble/core/ops/backend.h"

namespace nibble::ops {

inline const Backend& on(const Tensor& x) { return x.device().backend(); }

inline bool same_count(const Tensor& x, const auto&... others) { return ((x.numel() == others.numel()) && ...); }

inline void check_indices(const Tensor& indices, int64_t limit, const char* op, int32_t least = 0) {
  for (const int32_t index : indices.span<const int32_t>()) {
    NIBBLE_CHECK(index >= least && index < limit, std::string(op) + ": index " + std::to_string(index));
  }
}

}  // namespace nibble::ops
