#pragma once
// What the dispatching of all ops shares.

#include <algorithm>
#include <cstdint>
#include <string>

#include "nibble/core/ops/backend.h"

namespace nibble::ops {

inline const Backend& on(const Tensor& x) { return x.device().backend(); }

inline bool same_count(const Tensor& x, const auto&... others) { return ((x.numel() == others.numel()) && ...); }

inline void check_indices(const Tensor& indices, int64_t limit, const char* op, int32_t least = 0) {
  int32_t lowest = INT32_MAX, highest = INT32_MIN;
  for (const int32_t index : indices.span<const int32_t>()) {
    lowest = std::min(lowest, index);
    highest = std::max(highest, index);
  }
  if (indices.numel() == 0) return;
  NIBBLE_CHECK(lowest >= least, std::string(op) + ": index " + std::to_string(lowest));
  NIBBLE_CHECK(highest < limit, std::string(op) + ": index " + std::to_string(highest));
}

}  // namespace nibble::ops
