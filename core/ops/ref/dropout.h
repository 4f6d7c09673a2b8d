#pragma once
// Plain reference of ops/dropout.h: which elements are kept, and the scaling.

#include <cstdint>

#include "nibble/core/base/philox.h"
#include "nibble/core/ops/dropout.h"

namespace nibble::ops::ref {

/// Whether element `column` of the row with key `row_key` is kept: one Philox call gives 32 bits to each of four
/// neighbouring columns. Counter: column / 4, site, row key; key: seed mixed with step (Philox again).
inline bool dropout_keeps(const DropoutKey& key, int64_t row_key, int64_t column, float p) {
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
  const auto mixed =
      philox4x32({low(key.step), high(key.step), 0x64726f70u, 0}, {low(key.seed), high(key.seed)});  // "drop"
  const uint64_t row = static_cast<uint64_t>(row_key);
  const auto words =
      philox4x32({static_cast<uint32_t>(column / 4), key.site, low(row), high(row)}, {mixed[0], mixed[1]});
  return static_cast<double>(words[static_cast<size_t>(column % 4)]) >= static_cast<double>(p) * 4294967296.0;
}

template <typename Real>
void dropout(const Real* x, const int64_t* row_keys, int64_t tokens, int64_t width, float p, const DropoutKey& key,
             Real* y) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t d = 0; d < width; ++d) {
      const int64_t i = t * width + d;
      y[i] = dropout_keeps(key, row_keys[t], d, p) ? x[i] / (1 - static_cast<Real>(p)) : 0;
    }
  }
}

}  // namespace nibble::ops::ref
