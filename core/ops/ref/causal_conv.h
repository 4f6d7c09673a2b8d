#pragma once
// Plain reference of ops/causal_conv.h for one document of `tokens` rows that begins anew.

#include <cstdint>

namespace nibble::ops::ref {

/// b may be null.
template <typename Real>
void causal_conv_forward(const Real* x, const Real* w, const Real* b, int64_t tokens, int64_t width, int64_t taps,
                         Real* y) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      Real sum = b == nullptr ? 0 : b[c];
      for (int64_t k = 0; k < taps; ++k) {
        const int64_t from = t - taps + 1 + k;
        if (from >= 0) sum += w[c * taps + k] * x[from * width + c];
      }
      y[t * width + c] = sum;
    }
  }
}

/// dx overwritten; dw and db += (may be null).
template <typename Real>
void causal_conv_backward(const Real* dy, const Real* x, const Real* w, int64_t tokens, int64_t width, int64_t taps,
                          Real* dx, Real* dw, Real* db) {
  for (int64_t i = 0; i < tokens * width; ++i) dx[i] = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      const Real grad = dy[t * width + c];
      if (db != nullptr) db[c] += grad;
      for (int64_t k = 0; k < taps; ++k) {
        const int64_t from = t - taps + 1 + k;
        if (from < 0) continue;
        dx[from * width + c] += grad * w[c * taps + k];
        if (dw != nullptr) dw[c * taps + k] += grad * x[from * width + c];
      }
    }
  }
}

}  // namespace nibble::ops::ref
