#pragma once
// Plain reference of ops/residual.h: shapes as there, Real is float or double.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
void mix_streams_forward(const Real* x, const Real* coefficients, int64_t from, int64_t to, int64_t tokens,
                         int64_t width, Real* y) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t b = 0; b < to; ++b) {
      for (int64_t a = 0; a < from; ++a) {
        const Real weight = coefficients[(t * to + b) * from + a];
        for (int64_t d = 0; d < width; ++d) y[(b * tokens + t) * width + d] += weight * x[(a * tokens + t) * width + d];
      }
    }
  }
}

template <typename Real>
void mix_streams_backward(const Real* dy, const Real* x, const Real* coefficients, int64_t from, int64_t to,
                          int64_t tokens, int64_t width, Real* dx, Real* dcoefficients) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t b = 0; b < to; ++b) {
      for (int64_t a = 0; a < from; ++a) {
        const int64_t at = (t * to + b) * from + a;
        Real dot = 0;
        for (int64_t d = 0; d < width; ++d) {
          const Real g = dy[(b * tokens + t) * width + d];
          dot += g * x[(a * tokens + t) * width + d];
          dx[(a * tokens + t) * width + d] += coefficients[at] * g;
        }
        dcoefficients[at] = dot;
      }
    }
  }
}

constexpr double kLeastMeanSquare = 1e-5;

template <typename Real>
Real mean_square(const Real* row, int64_t width) {
  Real squares = 0;
  for (int64_t d = 0; d < width; ++d) squares += row[d] * row[d];
  return squares / static_cast<Real>(width);
}

template <typename Real>
void match_rms_forward(const Real* x, const Real* like, int64_t tokens, int64_t width, Real* y) {
  for (int64_t t = 0; t < tokens; ++t, x += width, like += width, y += width) {
    const Real clamped_square = std::max(mean_square(x, width), static_cast<Real>(kLeastMeanSquare));
    const Real factor = std::sqrt(mean_square(like, width) / clamped_square);
    for (int64_t d = 0; d < width; ++d) y[d] = x[d] * factor;
  }
}

template <typename Real>
void match_rms_backward(const Real* dy, const Real* x, const Real* like, int64_t tokens, int64_t width, Real* dx,
                        Real* dlike) {
  for (int64_t t = 0; t < tokens; ++t, dy += width, x += width, like += width, dx += width, dlike += width) {
    const Real square = mean_square(x, width), like_square = mean_square(like, width);
    const Real clamped_square = std::max(square, static_cast<Real>(kLeastMeanSquare));
    const Real factor = std::sqrt(like_square / clamped_square);
    Real dot = 0;
    for (int64_t d = 0; d < width; ++d) dot += dy[d] * x[d];
    const Real by_x =
        square >= static_cast<Real>(kLeastMeanSquare) ? dot * factor / (clamped_square * static_cast<Real>(width)) : 0;
    const Real by_like = like_square > 0 ? dot * factor / (like_square * static_cast<Real>(width)) : 0;
    for (int64_t d = 0; d < width; ++d) {
      dlike[d] += by_like * like[d];
      dx[d] = factor * dy[d] - by_x * x[d];
    }
  }
}

}  // namespace nibble::ops::ref
