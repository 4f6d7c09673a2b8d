#include <algorithm>
#include <array>

#include <hwy/aligned_allocator.h>
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"

namespace nibble::ops::cpu {

namespace {

// Columns of the narrow matrix, at most: one strip. Of the wide one, in a piece of work: two cache lines of each row,
// or one where pieces are few.
constexpr int64_t kNarrow = 64, kPiece = 2 * kThinColumns;
// Rows that are met by all columns of a piece while they are in the second level of the cache, however far apart.
constexpr int64_t kRowsAtOnce = 128;

using Sums = std::array<float, kNarrow * kPiece>;

/// The two matrices [K, n] of one product.
struct Operands {
  Operands(const PackedProduct& p, const GemmKernel& kernel)
      : left_is_narrow(p.c.dim(0) <= p.c.dim(1)),
        wide(left_is_narrow ? p.w.dense : p.a),
        narrow(left_is_narrow ? p.a : p.w.dense),
        depth(narrow.dim(0)),
        rows(narrow.dim(1)),
        strip_step(kernel.width * static_cast<int64_t>(sizeof(bf16))),
        strip(hwy::AllocateAligned<std::byte>(static_cast<size_t>((depth + 1) / 2 * 2 * strip_step))) {
    kernel.pack_rows(narrow.raw(), rows, rows, depth, strip.get());
  }

  bool left_is_narrow;  // c is narrow^T wide, and otherwise its transpose
  const Tensor &wide, &narrow;
  int64_t depth, rows;
  int64_t strip_step;  // bytes of one row of the strip
  hwy::AlignedFreeUniquePtr<std::byte[]> strip;
};

/// sums [rows, kPiece]: narrow^T wide for `columns` columns of `wide` from `column` on.
void multiply(const Operands& of, const GemmKernel& kernel, int64_t column, int64_t columns, Sums& sums) {
  constexpr int64_t kGroup = kThinRows * kThinColumns;
  const int64_t groups = (of.rows + kThinRows - 1) / kThinRows, width = of.wide.dim(1),
                block = packed_left_depth(kernel);
  Sums parts;  // of one block: [half of the piece][group of rows][kThinRows][kThinColumns]
  sums.fill(0.0f);
  for (int64_t begin = 0; begin < of.depth; begin += block) {
    const int64_t end = std::min(of.depth, begin + block);
    parts.fill(0.0f);
    for (int64_t k = begin; k < end; k += kRowsAtOnce) {
      for (int64_t n = 0; n < columns; n += kThinColumns) {
        const std::byte* wide = of.wide.raw() + (k * width + column + n) * static_cast<int64_t>(sizeof(bf16));
        for (int64_t g = 0; g < groups; ++g) {
          kernel.multiply_thin(
              std::min(kThinRows, of.rows - g * kThinRows), std::min(kThinColumns, columns - n),
              std::min(kRowsAtOnce, end - k),
              of.strip.get() + k * of.strip_step + g * kThinRows * 2 * static_cast<int64_t>(sizeof(bf16)), wide, width,
              parts.data() + (n / kThinColumns * groups + g) * kGroup);
        }
      }
    }
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t n = 0; n < columns; ++n) {
        const int64_t half = n / kThinColumns, group = r / kThinRows;
        const float part = parts[static_cast<size_t>((half * groups + group) * kGroup + r % kThinRows * kThinColumns +
                                                     n % kThinColumns)];
        float& sum = sums[static_cast<size_t>(r * kPiece + n)];
        sum = begin == 0 ? part : sum + part;
      }
    }
  }
}

}  // namespace

bool thin_fits(const PackedProduct& p, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, p.a.dtype());
  const auto [narrow, wide] = std::minmax({p.c.dim(0), p.c.dim(1)});
  return kernel.multiply_thin != nullptr && p.a_transposed && !p.w_transposed &&
         p.w.encoding == WeightEncoding::dense && p.w.dense.dtype() == kernel.compute && narrow <= kNarrow &&
         wide >= 4 * narrow;
}

void gemm_thin(const PackedProduct& p, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, p.a.dtype());
  const Operands of(p, kernel);
  const int64_t columns = of.wide.dim(1), piece = columns < 2 * threads() * kPiece ? kThinColumns : kPiece;
  parallel_for(columns, piece, [&](int64_t begin, int64_t end) {
    Sums sums, turned;
    multiply(of, kernel, begin, end - begin, sums);
    if (of.left_is_narrow) {
      return kernel.store(sums.data(), of.rows, end - begin, result_from(p, 0, begin, kPiece));
    }
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t n = 0; n < end - begin; ++n) {
        turned[static_cast<size_t>(n * kNarrow + r)] = sums[static_cast<size_t>(r * kPiece + n)];
      }
    }
    kernel.store(turned.data(), end - begin, of.rows, result_from(p, begin, 0, kNarrow));
  });
}

}  // namespace nibble::ops::cpu
