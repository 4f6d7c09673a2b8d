#pragma once
// The one seam for matrix products. Results are the same bits for any number of threads, and element (m, n) of a
// product of more than 4 rows does not depend on how many rows there are. The engine is our own packed kernel
// (cpu/gemm/gemm_packed.h) for dense and 4-bit weights alike; OpenBLAS may take dense f32 ones (NIBBLE_GEMM,
// cpu/gemm/gemm_openblas.h). benchmarks/gemm_benchmark.cpp holds both against oneDNN.

#include "nibble/core/ops/weight_view.h"

namespace nibble::ops {

/// A low-rank update that is fused into a product: left right is added to the sums of every tile before they are
/// rounded and written, so that it costs its multiplications alone (LoRA beside a frozen weight).
struct LowRankEpilogue {
  Tensor left;   ///< [T, R], in the dtype of the product's left side
  Tensor right;  ///< [R, N], or [N, R] if right_transposed; f32, bf16 or f16
  bool right_transposed = false;
};

// Products compute in the dtype of their first argument (f32, or bf16 with f32 accumulation); the other operand is
// rounded to it first. Results are f32 or bf16, rounded once (f32 ones of matmul_tn: once
// for every part of the depth). accumulate: add to the result instead of replacing it.
// On CPUs without bf16 instructions bf16 operands are widened and multiplied in f32. The result must not overlap the
// operands. Sizes may be 0.

/// c [M, N] (+)= alpha * a [M, K] w^T (+ epilogue), w [N, K]: y [T, out] = x [T, in] W^T of a weight W [out, in]
void matmul_nt(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate = false, float alpha = 1.0f,
               const LowRankEpilogue* epilogue = nullptr);
/// c [M, N] (+)= alpha * a [M, K] w (+ epilogue), w [K, N]: dx [T, in] = dy [T, out] W
void matmul_nn(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate = false, float alpha = 1.0f,
               const LowRankEpilogue* epilogue = nullptr);
/// c [M, N] f32 (+)= alpha * a^T b, a [K, M], b [K, N]: weight gradients (a = dy [T, out], b = x [T, in])
void matmul_tn(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate = false, float alpha = 1.0f);

}  // namespace nibble::ops
