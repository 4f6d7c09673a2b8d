#pragma once
// Plain reference of ops/weight_norm.h.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
void row_squares(const Real* w, int64_t rows, int64_t in, double* squares) {
  for (int64_t n = 0; n < rows; ++n) {
    squares[n] = 0;
    for (int64_t i = 0; i < in; ++i) squares[n] += double{w[n * in + i]} * double{w[n * in + i]};
  }
}

/// b [N, R], aw [R, N], gram [R, R]
template <typename Real>
void low_rank_norms(const Real* magnitudes, const double* w_squares, const Real* aw, const Real* b, const Real* gram,
                    double s, int64_t count, int64_t r, Real* norms, Real* factors) {
  for (int64_t n = 0; n < count; ++n) {
    double square = w_squares[n];  // |w + s b A|^2 = |w|^2 + 2 s b (A w) + s^2 b (A A^T) b^T
    for (int64_t i = 0; i < r; ++i) {
      square += 2 * s * double{b[n * r + i]} * double{aw[i * count + n]};
      for (int64_t j = 0; j < r; ++j) {
        square += s * s * double{b[n * r + i]} * double{gram[i * r + j]} * double{b[n * r + j]};
      }
    }
    norms[n] = static_cast<Real>(std::sqrt(std::max(square, 0.0)));
    factors[n] = magnitudes[n] / norms[n];
  }
}

template <typename Real>
void set_row_norms(const Real* lengths, int64_t rows, int64_t in, Real* values) {
  for (int64_t n = 0; n < rows; ++n) {
    double square = 0;
    for (int64_t i = 0; i < in; ++i) square += double{values[n * in + i]} * double{values[n * in + i]};
    if (square == 0) continue;
    for (int64_t i = 0; i < in; ++i) values[n * in + i] *= static_cast<Real>(double{lengths[n]} / std::sqrt(square));
  }
}

template <typename Real>
void scale_columns(const Real* x, const Real* factors, Real offset, int64_t rows, int64_t columns, Real* y) {
  for (int64_t i = 0; i < rows * columns; ++i) y[i] = x[i] * (factors[i % columns] + offset);
}

/// dmagnitudes +=
template <typename Real>
void scale_columns_backward(const Real* dy, const Real* x, const Real* norms, int64_t rows, int64_t columns,
                            Real* dmagnitudes) {
  for (int64_t i = 0; i < rows * columns; ++i) dmagnitudes[i % columns] += dy[i] * x[i] / norms[i % columns];
}

}  // namespace nibble::ops::ref
