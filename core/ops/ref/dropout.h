#pragma once
// Plain reference of ops/dropout.h: which elements are kept, and the scaling.

#include <array>
#include <cstdint>

#include "nibble/core/base/philox.h"
#include "nibble/core/ops/dropout.h"

namespace nibble::ops::ref {

/// The Philox key of all draws of one step: the seed, mixed with the step by Philox itself.
inline std::array<uint32_t, 2> dropout_key(const DropoutKey& key) {
  constexpr uint32_t kDrop = 0x64726f70;  // "drop": no other use of the seed has this counter
  const auto mixed = philox4x32({static_cast<uint32_t>(key.step), static_cast<uint32_t>(key.step >> 32), kDrop, 0},
                                {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  return {mixed[0], mixed[1]};
}

/// Whether element `column` of the row with key `row_key` is kept. One Philox call, with counter (column / 4, site, row
/// key), gives 32 bits to each of four neighbouring columns; kept if they are at least p 2^32.
inline bool dropout_keeps(const DropoutKey& key, int64_t row_key, int64_t column, float p) {
  const uint64_t row = static_cast<uint64_t>(row_key);
  const auto words = philox4x32(
      {static_cast<uint32_t>(column / 4), key.site, static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32)},
      dropout_key(key));
  return static_cast<double>(words[static_cast<size_t>(column % 4)]) >= static_cast<double>(p) * 4294967296.0;
}

template <typename Real>
void dropout(const Real* x, const int64_t* row_keys, int64_t tokens, int64_t width, float p, const DropoutKey& key,
             Real* y) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t d = 0; d < width; ++d) {
      const int64_t i = t * width + d;
      y[i] = dropout_keeps(key, row_keys[t], key.first_column + d, p) ? x[i] / (1 - static_cast<Real>(p)) : 0;
    }
  }
}

}  // namespace nibble::ops::ref
