#pragma once
// Plain reference of ops/experts/grouped.h, of one group; Real is float or double.

#include "nibble/core/ops/ref/gemm.h"

namespace nibble::ops::ref {

/// y[y_row(n)] (+)= alpha * x[x_row(n)] W (+ left[n] right) (+ weight[n] * bias) for n < count; W [in, out] or
/// (transposed) [out, in], right [rank, out]; rank 0 and bias null: none.
template <typename Real, typename XRow, typename YRow>
void grouped_matmul(const Real* x, XRow x_row, const Real* w, bool transposed, const Real* left, const Real* right,
                    int64_t rank, const Real* weights, const Real* bias, int64_t count, int64_t in, int64_t out,
                    Real alpha, bool accumulate, Real* y, YRow y_row) {
  for (int64_t n = 0; n < count; ++n) {
    Real* to = y + y_row(n) * out;
    matmul(x + x_row(n) * in, false, w, transposed, 1, out, in, alpha, accumulate, to);
    if (rank > 0) matmul(left + n * rank, false, right, false, 1, out, rank, Real(1), true, to);
    for (int64_t i = 0; bias != nullptr && i < out; ++i) to[i] += weights[n] * bias[i];
  }
}

/// c [M, K] += sum over n of a[a_row(n)]^T b[b_row(n)]
template <typename Real, typename ARow, typename BRow>
void grouped_matmul_tn(const Real* a, ARow a_row, const Real* b, BRow b_row, int64_t count, int64_t rows,
                       int64_t columns, Real* c) {
  for (int64_t n = 0; n < count; ++n) {
    matmul(a + a_row(n) * rows, true, b + b_row(n) * columns, false, rows, columns, 1, Real(1), true, c);
  }
}

}  // namespace nibble::ops::ref
