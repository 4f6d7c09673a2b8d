#pragma once
// Plain reference of ops/gemm.h, Real is float or double.

#include <cstdint>

namespace nibble::ops::ref {

/// c [M, N] = alpha * A B (+ c when accumulate), A [M, K], B [K, N]. Each operand is row-major, or (transposed) its
/// transpose is.
template <typename Real>
void matmul(const Real* a, bool a_transposed, const Real* b, bool b_transposed, int64_t rows, int64_t columns,
            int64_t depth, Real alpha, bool accumulate, Real* c) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) {
      Real sum = 0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += (a_transposed ? a[k * rows + m] : a[m * depth + k]) *
               (b_transposed ? b[n * depth + k] : b[k * columns + n]);
      }
      Real& to = c[m * columns + n];
      to = (accumulate ? to : 0) + alpha * sum;
    }
  }
}

}  // namespace nibble::ops::ref
