#pragma once
// The one seam for matrix products. Results are the same bits for any number of threads, and element (m, n) of a
// product of more than 4 rows does not depend on how many rows there are. The engine is our own packed kernel
// (cpu/gemm_packed.h) for dense and 4-bit weights alike; oneDNN and OpenBLAS are engines too, for dense weights
// (NIBBLE_GEMM, cpu/gemm_libraries.h). benchmarks/gemm_benchmark.cpp holds the three against each other.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// A weight matrix W [rows, cols] that a product reads as cache-sized pieces, expanded right before use. Dense weights
/// of any dtype and packed 4-bit weights are sources; none is ever expanded whole. Thread-safe.
class PanelSource {
 public:
  virtual ~PanelSource() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  /// Writes W[row_begin:row_end, col_begin:col_end] to out, row-major with `stride` elements between rows.
  virtual void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, float* out,
                    int64_t stride) const = 0;
  virtual void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, bf16* out,
                    int64_t stride) const = 0;
  /// y[i] = sum over k of W[row_begin + i, k] * x[k], with W or its factors rounded to bf16 and f32 sums in an order
  /// that depends on cols() only. False, and nothing done, where fill is the faster way or the only one.
  virtual bool dots(int64_t row_begin, int64_t row_end, const bf16* x, float* y) const {
    (void)row_begin, (void)row_end, (void)x, (void)y;
    return false;
  }
  /// The matrix as a tensor [rows, cols] when it is one, so that engines may read it in place; else null.
  virtual const Tensor* dense() const { return nullptr; }
};

/// A narrow product left right that a wider one takes along: added before its result is rounded and written, so that it
/// costs its multiplications alone.
struct LowRank {
  Tensor left;   ///< [T, R], in the dtype of the wider product's left side
  Tensor right;  ///< [R, N], or [N, R] if right_transposed; f32, bf16 or f16
  bool right_transposed = false;
};

// Products compute in the dtype of their first argument (f32, or bf16 with f32 accumulation); the other operand is
// rounded to it first. Results are f32 or bf16, rounded once. accumulate: add to the result instead of replacing it.
// On CPUs without bf16 instructions bf16 operands are widened and multiplied in f32. The result must not overlap the
// operands. Sizes may be 0.

/// y [T, out] (+)= x [T, in] W^T (+ beside), W [out, in]
void matmul_nt(const Tensor& x, const PanelSource& w, Tensor& y, bool accumulate = false,
               const LowRank* beside = nullptr);
/// dx [T, in] (+)= dy [T, out] W (+ beside), W [out, in]
void matmul_nn(const Tensor& dy, const PanelSource& w, Tensor& dx, bool accumulate = false,
               const LowRank* beside = nullptr);

/// c [M, N] (+)= alpha * a [M, K] b^T, b [N, K] (f32, bf16 or f16)
void matmul_nt(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate = false, float alpha = 1.0f);
/// c [M, N] (+)= alpha * a [M, K] b, b [K, N] (f32, bf16 or f16)
void matmul_nn(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate = false, float alpha = 1.0f);
/// c [M, N] f32 (+)= alpha * a^T b, a [K, M], b [K, N]: weight gradients (a = dy [T, out], b = x [T, in])
void matmul_tn(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate = false, float alpha = 1.0f);

}  // namespace nibble::ops
