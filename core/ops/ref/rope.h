#pragma once
// Plain reference of ops/rope.h.

#include <cstdint>

namespace nibble::ops::ref {

/// x [T, heads * head_size], cos and sin [P, rot / 2].
template <typename Real>
void rope(Real* x, int64_t tokens, int64_t heads, int64_t head_size, int64_t rot, const int32_t* positions,
          const Real* cos, const Real* sin, bool inverse) {
  const int64_t half = rot / 2;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      Real* head = x + (t * heads + h) * head_size;
      for (int64_t i = 0; i < half; ++i) {
        const Real c = cos[positions[t] * half + i];
        const Real s = inverse ? -sin[positions[t] * half + i] : sin[positions[t] * half + i];
        const Real a = head[i], b = head[i + half];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
      }
    }
  }
}

}  // namespace nibble::ops::ref
