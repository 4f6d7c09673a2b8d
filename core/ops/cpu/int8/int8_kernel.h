#pragma once
// The innermost loops of products in 8 bits, one set per instruction set level, as GemmKernel.

#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/int8/int8_product.h"

namespace nibble::ops::cpu {

/// Elements of depth in 4 bytes, which most instructions multiply with 4 others and sum.
constexpr int64_t kInt8Step = 4;

/// One group of depth of a tile: sums[r, n] = fma(x_scale, float(dot of the codes) * w_scale, first ? 0 : sums[r, n]).
struct Int8Tile {
  const int8_t* x;   ///< codes of the tile's first row, kInt8Group to a row
  const uint8_t* w;  ///< for every step `width` times `step` codes, each plus the kernel's bias
  int64_t steps;     ///< what is beyond the depth of w meets zeros of x
  const float* x_scales;
  const int32_t* x_sums;  ///< of its codes: times the bias, what the dot is too large by
  const float* w_scales;  ///< [width]
  float* sums;
  int64_t sums_stride;
  bool first;
};

/// Codes of one block of a 4-bit weight.
struct Int8Run {
  const uint8_t* packed;  ///< of the whole matrix
  int64_t begin, count;   ///< elements, in one block
  const float* table;     ///< value of each of the 16 codes
  float scale, inverse;   ///< of the block, and what values are multiplied by before they are rounded
};

struct Int8Kernel {
  int64_t levels;  ///< weights are rounded to -levels ... levels
  int64_t bias;    ///< what is added to them, where the instruction wants one side unsigned
  int64_t step;    ///< elements of depth that an instruction multiplies and sums: kInt8Step or twice as many
  int64_t rows, lanes, width, depth_block, panel_columns;  ///< as in GemmKernel
  int64_t read_columns = kReadColumns;

  TileShape shape() const { return {rows, width, depth_block, panel_columns, read_columns}; }

  /// rows in 1..rows; all columns of a strip.
  void (*multiply)(int64_t rows, const Int8Tile& tile);
  /// Writes run.count codes plus the bias.
  void (*expand)(const Int8Run& run, uint8_t* out);
  /// GemmKernel::pack_transposed and pack_rows, of bytes. Depths that are missing in the last step are undefined.
  void (*pack_transposed)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip);
  void (*pack_rows)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip);

  void (*release)() = nullptr;  ///< as in GemmKernel
};

/// The kernel of this CPU at `level`, which it has (best_isa); null: none.
const Int8Kernel* int8_kernel(Isa level);

/// int8_matmul_nt (transposed) or int8_matmul_nn by the kernel of `level`; an epilogue that is not fused is a product
/// of its own at isa().
void int8_product(const Int8Rows& x, const WeightView& w, bool transposed, Tensor& c, bool accumulate,
                  const LowRankEpilogue* epilogue, Isa level);

/// One table per file.
extern const Int8Kernel kInt8Avx2;
extern const Int8Kernel kInt8AvxVnni;
extern const Int8Kernel kInt8Avx512Vnni;
extern const Int8Kernel kInt8Amx;
extern const Int8Kernel kInt8NeonDotprod;
extern const Int8Kernel kInt8NeonI8mm;

}  // namespace nibble::ops::cpu
