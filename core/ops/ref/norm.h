#pragma once
// Plain reference of ops/norm.h: shapes as there, Real is float or double.

#include <cmath>
#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
void rms_norm_forward(const Real* x, const Real* w, int64_t tokens, int64_t width, Real eps, Real weight_offset,
                      Real* y, Real* inv_rms) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* row = x + t * width;
    Real squares = 0;
    for (int64_t d = 0; d < width; ++d) squares += row[d] * row[d];
    inv_rms[t] = 1 / std::sqrt(squares / static_cast<Real>(width) + eps);
    for (int64_t d = 0; d < width; ++d) y[t * width + d] = row[d] * inv_rms[t] * (weight_offset + w[d]);
  }
}

/// dx += and dw += (dw may be null).
template <typename Real>
void rms_norm_backward(const Real* dy, const Real* x, const Real* w, int64_t tokens, int64_t width, Real weight_offset,
                       const Real* inv_rms, Real* dx, Real* dw) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* row = x + t * width;
    const Real* g = dy + t * width;
    const Real s = inv_rms[t];
    Real dot = 0;
    for (int64_t d = 0; d < width; ++d) dot += g[d] * (weight_offset + w[d]) * row[d];
    const Real projection = dot * s * s / static_cast<Real>(width);
    for (int64_t d = 0; d < width; ++d) dx[t * width + d] += s * (g[d] * (weight_offset + w[d]) - row[d] * projection);
    if (dw == nullptr) continue;
    for (int64_t d = 0; d < width; ++d) dw[d] += g[d] * row[d] * s;
  }
}

/// b may be null.
template <typename Real>
void layer_norm_forward(const Real* x, const Real* w, const Real* b, int64_t tokens, int64_t width, Real eps, Real* y,
                        Real* mean, Real* inv_std) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* row = x + t * width;
    Real sum = 0, squares = 0;
    for (int64_t d = 0; d < width; ++d) sum += row[d];
    mean[t] = sum / static_cast<Real>(width);
    for (int64_t d = 0; d < width; ++d) squares += (row[d] - mean[t]) * (row[d] - mean[t]);
    inv_std[t] = 1 / std::sqrt(squares / static_cast<Real>(width) + eps);
    for (int64_t d = 0; d < width; ++d) {
      y[t * width + d] = (row[d] - mean[t]) * inv_std[t] * w[d] + (b == nullptr ? 0 : b[d]);
    }
  }
}

/// dx, dw and db += (dw and db may be null).
template <typename Real>
void layer_norm_backward(const Real* dy, const Real* x, const Real* w, int64_t tokens, int64_t width, const Real* mean,
                         const Real* inv_std, Real* dx, Real* dw, Real* db) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* row = x + t * width;
    const Real* g = dy + t * width;
    Real sum = 0, dot = 0;
    for (int64_t d = 0; d < width; ++d) {
      sum += g[d] * w[d];
      dot += g[d] * w[d] * (row[d] - mean[t]) * inv_std[t];
    }
    for (int64_t d = 0; d < width; ++d) {
      const Real normed = (row[d] - mean[t]) * inv_std[t];
      dx[t * width + d] += inv_std[t] * (g[d] * w[d] - (sum + normed * dot) / static_cast<Real>(width));
      if (dw != nullptr) dw[d] += g[d] * normed;
      if (db != nullptr) db[d] += g[d];
    }
  }
}

}  // namespace nibble::ops::ref
