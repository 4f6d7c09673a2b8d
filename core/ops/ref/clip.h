#pragma once
// Plain reference of ops/clip.h and ops/softcap.h.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::ops::ref {

/// inside may be null.
template <typename Real>
void clip(Real* x, int64_t count, Real limit, uint8_t* inside) {
  for (int64_t i = 0; i < count; ++i) {
    if (inside != nullptr) inside[i] = x[i] >= -limit && x[i] <= limit;
    x[i] = std::min(std::max(x[i], -limit), limit);
  }
}

template <typename Real>
void clip_backward(const uint8_t* inside, int64_t count, Real* dx) {
  for (int64_t i = 0; i < count; ++i) dx[i] = inside[i] != 0 ? dx[i] : Real(0);
}

template <typename Real>
void softcap(Real* x, int64_t count, Real cap) {
  for (int64_t i = 0; i < count; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

}  // namespace nibble::ops::ref
