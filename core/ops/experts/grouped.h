#pragma once
// Products of experts: the rows of every expert with a weight of its own, all experts in one op. Results are the same
// bits for any number of threads.

#include <vector>

#include "nibble/core/ops/weight_view.h"

namespace nibble::ops {

/// N rows in G groups, one after another, and the rows of a tensor of T rows that they stand for.
struct RowGroups {
  std::vector<int64_t> begins;  ///< [G + 1]: group g has rows begins[g] up to begins[g + 1]
  Tensor rows;                  ///< [N] i32, the host's: row n stands for row rows[n] of T; all different in a group

  int64_t groups() const { return static_cast<int64_t>(begins.size()) - 1; }
  int64_t size() const { return begins.back(); }
  int64_t begin(int64_t g) const { return begins[static_cast<size_t>(g)]; }
  int64_t end(int64_t g) const { return begins[static_cast<size_t>(g) + 1]; }
  int64_t count(int64_t g) const { return end(g) - begin(g); }
};

/// Which rows a tensor has: N, in the order of the groups, or T, of which it is read (gathered) or added to (scattered)
/// in place.
enum class RowOrder : uint8_t { groups, tokens };

/// What the rows of each group are multiplied by. Vectors have an element for every group; those without rows are not
/// looked at.
struct GroupedWeights {
  std::vector<WeightView> w;
  bool transposed = true;  ///< x w^T, w [out, in]; else x w, w [in, out]

  /// A low-rank update fused into the product, see LowRankEpilogue; undefined: none. One that does not fit beside a
  /// panel, or of an odd rank in bf16, is a product of its own, added to the rounded result.
  Tensor left;                ///< [N, R]
  std::vector<Tensor> right;  ///< [R, out], or [out, R] if right_transposed
  bool right_transposed = false;

  /// f32 [out], added to scattered results; empty: none. Row n gets bias_weights[n] (f32 [N]) times it.
  std::vector<Tensor> biases;
  Tensor bias_weights;
};

/// y[n] (+)= alpha * x[n] W_g (+ left[n] right_g) for the rows n of group g. x [N, in], or [T, in] of which row rows[n]
/// is x[n]. y [N, out], f32 or bf16; or, in the order of the tokens, [T, out] f32: then always y[rows[n]] += , in the
/// order of the groups. Computes in the dtype of x, rounds as the products of gemm.h do. Row n of more than
/// kFewGroupedRows in its group does not depend on how many they are. No alpha beside an update.
void grouped_matmul(const Tensor& x, RowOrder x_order, const RowGroups& groups, const GroupedWeights& weights,
                    Tensor& y, RowOrder y_order, bool accumulate = false, float alpha = 1);

inline constexpr int64_t kFewGroupedRows = 16;

/// c[g] [M, K] f32 += the sum over the rows n of group g of a[n]^T b[n]; a [N, M] or [T, M], b [N, K] or [T, K], of one
/// dtype.
void grouped_matmul_tn(const Tensor& a, RowOrder a_order, const Tensor& b, RowOrder b_order, const RowGroups& groups,
                       const std::vector<Tensor>& c);

}  // namespace nibble::ops
