#pragma once
// Our own blocked product (Goto and van de Geijn 2008, with the right operand packed per panel): the panel is filled
// right before use, from a tensor or from packed 4-bit weights, so nothing is ever expanded whole.

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/gemm.h"

namespace nibble::ops::cpu {

/// c [M, N] (+)= alpha * A B with A = a [M, K] (or a^T, a [K, M]) and B = w^T, w [N, K] (or w [K, N]).
struct PackedProduct {
  const Tensor& a;
  bool a_transposed = false;
  const WeightView& w;
  bool w_transposed = true;
  Tensor& c;
  bool accumulate = false;
  float alpha = 1.0f;
  bool widened = false;  ///< bf16 in the arithmetic of f32, chosen or the only one that the CPU has
};

/// For GemmKernel: sums of the whole depth, sums_stride apart, become c from (row, column) on.
inline TileOutput result_from(const PackedProduct& p, int64_t row, int64_t column, int64_t sums_stride) {
  const int64_t columns = p.c.dim(1), size = static_cast<int64_t>(dtype_size(p.c.dtype()));
  return {.first = true,
          .last = true,
          .sums = nullptr,
          .sums_stride = sums_stride,
          .c = p.c.mutable_raw() + (row * columns + column) * size,
          .c_stride = columns,
          .dtype = p.c.dtype(),
          .alpha = p.alpha,
          .accumulate = p.accumulate};
}

/// Computes with the kernel of `level`, which must not be above isa(). Element (m, n) of c is a sum over K in an order
/// that depends on K only: neither on the number of threads nor on M or N. `epilogue`, a product into the same c, is
/// added to the sums of every tile; see gemm_packed_fuses.
void gemm_packed(const PackedProduct& product, Isa level, const PackedProduct* epilogue = nullptr);

/// The kernel of gemm_packed.
inline const GemmKernel& kernel_of(const PackedProduct& p, Isa level) {
  return gemm_kernel(level, p.widened ? DType::f32 : p.a.dtype());
}

/// gemm_packed where A has to be packed, as in the gradients of weights. Sums of parts of the depth are added to an f32
/// c one after another, each rounded; those of another c are added before.
void gemm_both_packed(const PackedProduct& product, Isa level);

/// Whether gemm_packed computes `epilogue` fused into `product` at `level`: both left sides are read in place, and the
/// right side of `epilogue` is shallow enough for the buffer that left sides do not need then.
bool gemm_packed_fuses(const PackedProduct& product, const PackedProduct& epilogue, Isa level);

/// Whether `epilogue` may be added to the sums of tiles of a product of at most `panel_columns` columns a job, with all
/// but `reserved` bytes of the buffer of left sides for its right side.
bool gemm_packed_reads(const PackedProduct& epilogue, int64_t panel_columns, int64_t reserved, Isa level);

/// Whether gemm_few_rows computes this product at `level`: at most 4 rows of A times w^T.
bool few_rows_fit(const PackedProduct& product, Isa level);

/// The same for the few rows of decoding: rows of w are read (or filled) once and multiplied at once, at the speed of
/// memory. An order of its own, which depends on K only as well.
void gemm_few_rows(const PackedProduct& product, Isa level);

/// Whether gemm_swapped computes this product at `level`, with the epilogue, which gemm_packed_fuses: rows of A that
/// fit into a panel times w^T of a dense w in the compute type, where packing w costs as much as 16 rows of A. w has at
/// least twice the rows of A: packing A would cost more otherwise.
bool swapped_fits(const PackedProduct& product, Isa level, const PackedProduct* epilogue = nullptr);

/// The same bits as gemm_packed for the tokens that are drawn together: c^T = w a^T, with A as the operand that is
/// packed, once, and w read in place, once.
void gemm_swapped(const PackedProduct& product, Isa level, const PackedProduct* epilogue = nullptr);

/// Whether gemm_thin computes this product at `level`: a^T w of matrices in the kernel's type, read in place, one of
/// them at most 64 columns wide and the other four times as wide or more, where packing the wide one would cost more
/// than multiplying.
bool thin_fits(const PackedProduct& product, Isa level);

/// The same bits as gemm_packed for the gradients of an adapter's A and B: the wide matrix is read in place.
void gemm_thin(const PackedProduct& product, Isa level);

}  // namespace nibble::ops::cpu
