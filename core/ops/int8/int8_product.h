#pragma once
// Products in 8 bits with a frozen weight: both sides are rounded to whole numbers with one scale for every group of
// kInt8Group elements along the depth of the product (vector-wise quantization, Dettmers et al. 2022, in groups as
// ZeroQuant, Yao et al. 2022), multiplied exactly in 32 bits within a group, and summed in f32 across groups.

#include "nibble/core/ops/gemm.h"

namespace nibble::ops {

/// Elements along the depth that share a scale: with 128 the loop of AVX512-VNNI runs at 0.9 of its peak (64: 0.83,
/// 256: 0.95), and an outlier costs its neighbours in no more than 128 columns their precision.
constexpr int64_t kInt8Group = 128;

/// Rows of x [T, K] in 8 bits: x[t, k] is about codes * scales of its row and group.
struct Int8Rows {
  Int8Rows(MemoryPool& pool, const Tensor& x);

  int64_t rows() const { return scales.dim(1); }
  int64_t groups() const { return scales.dim(0); }

  int64_t depth;  ///< K
  DType dtype;    ///< of x: what an epilogue multiplies in
  Tensor codes;   ///< i8 [groups, T, kInt8Group] in [-127, 127], ties to even; 0 beyond the end of a short last group
  Tensor scales;  ///< f32 [groups, T]: largest |x| of the group / 127; 0 where that is below 1e-30, NaN if not finite
  Tensor sums;    ///< i32 [groups, T]: of the codes
};

/// rows = x [T, K] f32 or bf16
void int8_round(const Tensor& x, Int8Rows& rows);

// W is rounded alike as it is read, with a scale for every group of the depth and column of the product; a 4-bit weight
// whose rows are whole blocks has the scale of the group's largest block, even if no element of it is that large.
// Levels: 127 on either side of 0, or 63 where the CPU has no 8-bit dot product (int8_levels). Element (m, n) is
// fma(scale of x, float(sum of codes) * scale of w, sum so far) over the groups in order, on every CPU with the same
// levels, for any number of threads and rows. The epilogue and what c is rounded to are those of gemm.h.

/// c [M, N] (+)= x [M, K] w^T (+ epilogue), w [N, K]
void int8_matmul_nt(const Int8Rows& x, const WeightView& w, Tensor& c, bool accumulate = false,
                    const LowRankEpilogue* epilogue = nullptr);
/// c [M, N] (+)= x [M, K] w (+ epilogue), w [K, N]
void int8_matmul_nn(const Int8Rows& x, const WeightView& w, Tensor& c, bool accumulate = false,
                    const LowRankEpilogue* epilogue = nullptr);

/// Numbers on either side of 0 that a weight is rounded to: 127 or 63; 0 where this CPU (see isa()) has no kernel for
/// products in 8 bits.
int64_t int8_levels();

}  // namespace nibble::ops
