#pragma once
// Plain reference of ops/rope.h.

#include <cstdint>

#include "nibble/core/ops/rope.h"

namespace nibble::ops::ref {

/// x [T, heads * head_size], cos and sin [P, rot / 2].
template <typename Real>
void rope(Real* x, int64_t tokens, int64_t heads, int64_t head_size, int64_t rot, const int32_t* positions,
          const Real* cos, const Real* sin, bool inverse, RopePairs pairs = RopePairs::halves, int64_t begin = 0) {
  const int64_t half = rot / 2;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      Real* head = x + (t * heads + h) * head_size + begin;
      for (int64_t i = 0; i < half; ++i) {
        const Real c = cos[positions[t] * half + i];
        const Real s = inverse ? -sin[positions[t] * half + i] : sin[positions[t] * half + i];
        const int64_t first = pairs == RopePairs::halves ? i : 2 * i;
        const int64_t second = pairs == RopePairs::halves ? i + half : 2 * i + 1;
        const Real a = head[first], b = head[second];
        head[first] = a * c - b * s;
        head[second] = b * c + a * s;
      }
    }
  }
}

}  // namespace nibble::ops::ref
