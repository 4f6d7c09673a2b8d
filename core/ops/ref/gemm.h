#pragma once
// Plain reference of ops/gemm.h, Real is float or double.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace nibble::ops::ref {

/// c [M, N] = alpha * A B (+ c when accumulate), A [M, K], B [K, N]. Each operand is row-major, or (transposed) its
/// transpose is.
template <typename Real>
void matmul(const Real* a, bool a_transposed, const Real* b, bool b_transposed, int64_t rows, int64_t columns,
            int64_t depth, Real alpha, bool accumulate, Real* c) {
  std::vector<Real> sums(static_cast<size_t>(columns));
  Real* sum = sums.data();
  for (int64_t m = 0; m < rows; ++m) {
    std::fill_n(sum, columns, Real(0));
    const Real* left = a + (a_transposed ? m : m * depth);
    const int64_t stride = a_transposed ? rows : 1;
    if (b_transposed) {  // either way along the rows of B as they lie
      for (int64_t n = 0; n < columns; ++n) {
        Real dot = 0;
        for (int64_t k = 0; k < depth; ++k) dot += left[k * stride] * b[n * depth + k];
        sum[n] = dot;
      }
    } else {
      for (int64_t k = 0; k < depth; ++k) {
        const Real factor = left[k * stride];
        for (int64_t n = 0; n < columns; ++n) sum[n] += factor * b[k * columns + n];
      }
    }
    for (int64_t n = 0; n < columns; ++n) {
      Real& to = c[m * columns + n];
      to = (accumulate ? to : 0) + alpha * sum[n];
    }
  }
}

}  // namespace nibble::ops::ref
