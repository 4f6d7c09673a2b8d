#include <algorithm>
#include <array>
#include <cstring>

#include <hwy/aligned_allocator.h>
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/gemm_plan.h"

namespace nibble::ops::cpu {

namespace {

// Columns of the narrow matrix, at most. Of the wide one, in a piece of work: two calls of the kernel, or one where
// pieces are few.
constexpr int64_t kNarrow = 64, kPiece = 2 * kThinColumns, kFewPieces = 8;

using Sums = std::array<float, kNarrow * kPiece>;

/// The two matrices [K, n] of one product.
struct Operands {
  Operands(const PackedProduct& p, const GemmKernel& kernel)
      : left_is_narrow(p.c.dim(0) <= p.c.dim(1)),
        wide(left_is_narrow ? p.w.dense : p.a),
        narrow(left_is_narrow ? p.a : p.w.dense),
        depth(narrow.dim(0)),
        rows(narrow.dim(1)),
        size(static_cast<int64_t>(dtype_size(kernel.compute))),
        strip_step(kernel.width * size),
        strip_bytes(round_up(depth, kernel.depth_step) * strip_step),
        strips(hwy::AllocateAligned<std::byte>(static_cast<size_t>(divide_up(rows, kernel.width) * strip_bytes))) {
    for (int64_t row = 0; row < rows; row += kernel.width) {
      kernel.pack_rows(narrow.raw() + row * size, rows, std::min(kernel.width, rows - row), depth,
                       strips.get() + row / kernel.width * strip_bytes);
    }
  }

  /// Of the narrow matrix from depth k and column `row` on.
  const std::byte* left(int64_t k, int64_t row, const GemmKernel& kernel) const {
    return strips.get() + row / kernel.width * strip_bytes + k * strip_step +
           row % kernel.width * kernel.depth_step * size;
  }

  bool left_is_narrow;  // c is narrow^T wide, and otherwise its transpose
  const Tensor &wide, &narrow;
  int64_t depth, rows;
  int64_t size, strip_step, strip_bytes;  // of an element, of one row of a strip, of a strip
  hwy::AlignedFreeUniquePtr<std::byte[]> strips;
};

/// `count` rows of a matrix, of which the next are asked for meanwhile, into rows of `to_stride` bytes.
void copy_rows(const std::byte* from, int64_t stride, int64_t count, int64_t bytes, std::byte* to, int64_t to_stride) {
  constexpr int64_t kAheadRows = 16, kLine = 64;
  for (int64_t row = 0; row < count; ++row, from += stride, to += to_stride) {
    for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(from + kAheadRows * stride + i);
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

/// sums [rows, kPiece] (+)= alpha * narrow^T wide for `columns` columns of `wide` from `column` on, part by part of the
/// depth.
void multiply(const Operands& of, const GemmKernel& kernel, int64_t column, int64_t columns, bool accumulate,
              float alpha, Sums& sums) {
  const int64_t width = of.wide.dim(1), block = packed_left_depth(kernel);
  TileOutput output = {.first = true,
                       .last = true,
                       .sums = nullptr,
                       .sums_stride = kThinColumns,
                       .c = nullptr,
                       .c_stride = kPiece,
                       .dtype = DType::f32,
                       .alpha = alpha,
                       .accumulate = accumulate};
  alignas(64) std::array<std::byte, kThinDepth * kPiece * sizeof(float)> copied;
  Sums parts;  // of one block: [half of the piece][rows][kThinColumns]
  for (int64_t begin = 0; begin < of.depth; begin += block, output.accumulate = true) {
    const int64_t end = std::min(of.depth, begin + block);
    std::fill_n(parts.begin(), of.rows * kPiece, 0.0f);
    for (int64_t k = begin; k < end; k += kThinDepth) {
      const int64_t deep = std::min(kThinDepth, end - k);
      const std::byte* wide = of.wide.raw() + (k * width + column) * of.size;
      if (kernel.copies_wide) {
        copy_rows(wide, width * of.size, deep, columns * of.size, copied.data(), kPiece * of.size);
        wide = copied.data();
      }
      for (int64_t n = 0; n < columns; n += kThinColumns) {
        for (int64_t r = 0, count; r < of.rows; r += count) {
          count = std::min({kernel.thin_rows, of.rows - r, kernel.width - r % kernel.width});
          kernel.multiply_thin(count, std::min(kThinColumns, columns - n), deep, of.left(k, r, kernel),
                               wide + n * of.size, kernel.copies_wide ? kPiece : width,
                               parts.data() + n * of.rows + r * kThinColumns);
        }
      }
    }
    for (int64_t n = 0; n < columns; n += kThinColumns) {
      output.c = reinterpret_cast<std::byte*>(sums.data() + n);
      kernel.store(parts.data() + n * of.rows, of.rows, std::min(kThinColumns, columns - n), output);
    }
  }
}

/// Asks for a piece of the result, rows apart: it comes while its sums are computed.
void fetch(const TileOutput& result, int64_t rows, int64_t columns) {
  constexpr int64_t kLine = 64;
  const auto size = static_cast<int64_t>(dtype_size(result.dtype));
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* row = result.c + r * result.c_stride * size;
    for (int64_t i = 0; i < columns * size; i += kLine) __builtin_prefetch(row + i, 1);
  }
}

}  // namespace

bool thin_fits(const PackedProduct& p, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, p.a.dtype());
  const auto [narrow, wide] = std::minmax({p.c.dim(0), p.c.dim(1)});
  return kernel.multiply_thin != nullptr && p.a_transposed && !p.w_transposed && !p.widened &&
         p.a.dtype() == kernel.compute && p.c.dtype() == DType::f32 && p.w.encoding == WeightEncoding::dense &&
         p.w.dense.dtype() == kernel.compute && narrow <= kNarrow && wide >= 4 * narrow;
}

void gemm_thin(const PackedProduct& p, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, p.a.dtype());
  const Operands of(p, kernel);
  const int64_t columns = of.wide.dim(1), piece = columns < kFewPieces * threads() * kPiece ? kThinColumns : kPiece;
  parallel_for(columns, piece, [&](int64_t begin, int64_t end) {
    Sums sums, turned;
    TileOutput result = of.left_is_narrow ? result_from(p, 0, begin, kPiece) : result_from(p, begin, 0, kNarrow);
    const auto [rows, width] = of.left_is_narrow ? std::pair(of.rows, end - begin) : std::pair(end - begin, of.rows);
    // Each of several parts of the depth is added to what the result holds.
    const bool several = of.depth > packed_left_depth(kernel);
    if (several && p.accumulate) {
      for (int64_t m = 0; m < rows; ++m) {
        const float* c = reinterpret_cast<const float*>(result.c) + m * result.c_stride;
        for (int64_t n = 0; n < width; ++n) {
          sums[static_cast<size_t>(of.left_is_narrow ? m * kPiece + n : n * kPiece + m)] = c[n];
        }
      }
    } else {
      fetch(result, rows, width);
    }
    multiply(of, kernel, begin, end - begin, several && p.accumulate, several ? p.alpha : 1.0f, sums);
    if (several) {
      result.alpha = 1;
      result.accumulate = false;
    }
    if (of.left_is_narrow) return kernel.store(sums.data(), rows, width, result);
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t n = 0; n < end - begin; ++n) {
        turned[static_cast<size_t>(n * kNarrow + r)] = sums[static_cast<size_t>(r * kPiece + n)];
      }
    }
    kernel.store(turned.data(), rows, width, result);
  });
}

}  // namespace nibble::ops::cpu
