#pragma once
// The innermost loops of a matrix product, one set per instruction set level. The blocked driver (gemm_packed.h) calls
// them through this table, so adding a CPU means adding one file.

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_strip.h"
#include "nibble/core/tensor/dtype.h"

namespace nibble::ops::cpu {

/// Rows of A, where it is not packed, that are multiplied by a panel at once: a multiple of every kernel's rows.
constexpr int64_t kLeftGroup = 48;
/// Rows of either operand in one call of GemmKernel::dots.
constexpr int64_t kDotRows = 4;
/// Columns of the narrow (see thin_rows) and of the wide matrix in one call of GemmKernel::multiply_thin and, so that
/// all columns of a piece meet them in the second cache level, rows of both.
constexpr int64_t kThinRows = 8, kThinColumns = 32, kThinDepth = 128;

/// What a tile multiplies, a left operand with a right one, and what is added to the same sums after it.
struct TileInput {
  const std::byte* a;  ///< group (row, step) of the left operand lies at row * a_row_bytes + step * a_step_bytes
  int64_t a_row_bytes, a_step_bytes;
  const std::byte* b;  ///< a strip of the right operand
  int64_t steps;
  const TileInput* epilogue;  ///< null: none
  /// What comes from memory and is read next, as many bytes at every step as the rows of the left operand have there;
  /// null: the strip goes on. A hint.
  const std::byte* ahead = nullptr;
  /// Lines of the next rows of the left operand in place, a_row_bytes apart, that are asked for meanwhile; null: none.
  /// A hint.
  const std::byte* next_rows = nullptr;
};

/// Where the sums of a tile go.
struct TileOutput {
  bool first, last;  ///< whether this is the first, the last part of the depth
  float* sums;  ///< f32 sums between parts: read unless first; a kernel may write them where they are the last, too
  int64_t sums_stride;
  std::byte* c;  ///< the result, f32 or bf16, written when last: c (+)= alpha * sums, rounded once
  int64_t c_stride;
  DType dtype;
  float alpha;
  bool accumulate;
};

/// What it costs a panel to read rows of A from beyond the nearest caches, as columns that are multiplied: measured
/// with panels of half the columns or fewer. Tiles (AMX) multiply several times as fast as memory is read.
constexpr int64_t kReadColumns = 6, kReadColumnsOfTiles = 12;

/// What the cutting of a product into jobs depends on; see GemmKernel.
struct TileShape {
  int64_t rows, width, depth_block, panel_columns, read_columns;
};

/// Micro kernel over packed operands.
///
/// Right operand: strips of `width` columns. A strip holds, for every step of depth, `width` groups of `depth_step`
/// elements (consecutive in depth); missing columns and depths are zero. Left operand: see TileInput, so that row-major
/// tensors can be read in place.
struct GemmKernel {
  DType compute;          ///< element type of both packed operands: f32 or bf16
  int64_t rows;           ///< rows of a full tile
  int64_t lanes;          ///< columns of one vector register
  int64_t width;          ///< columns of a strip, a multiple of lanes
  int64_t depth_step;     ///< depths one instruction consumes: 1 (f32), 2 or 4 (bf16)
  int64_t depth_block;    ///< depths of a panel
  int64_t panel_columns;  ///< columns of a panel: depth_block * panel_columns elements stay in the L2 cache
  /// Whether groups of a row follow each other in a packed left operand, not those of a step.
  bool left_by_rows = false;
  /// Rows of a tile with as many sums as hide the latency of a multiply-add.
  int64_t least_rows = 1;
  /// Rows of a tile whose columns fit one register, a multiple of `rows` and a divisor of kLeftGroup; 0: `rows`. Only
  /// where the left operand is read in place.
  int64_t narrow_rows = 0;
  /// Where A has to be packed: rows that are packed at once, a multiple of kLeftGroup (many, where rows of the matrix
  /// in memory are pages apart).
  int64_t packed_rows = kLeftGroup;
  int64_t read_columns = kReadColumns;

  TileShape shape() const { return {rows, width, depth_block, panel_columns, read_columns}; }

  /// One tile, c [rows, columns]; rows in 1..rows (or narrow_rows), columns in 1..width. Sums between parts of the
  /// depth are kept for columns rounded up to lanes.
  void (*multiply)(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output);

  /// Packs `columns` <= lanes rows of a row-major matrix, `depth` elements each, as columns of a strip: `strip` points
  /// at the first of these columns.
  void (*pack_transposed)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip);
  /// Packs `depth` rows of `columns` <= width elements of a row-major matrix as a strip.
  void (*pack_rows)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip);

  /// The same of a matrix of bf16, for a kernel in f32. Null: it is made f32 before.
  void (*pack_transposed_bf16)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                               std::byte* strip) = nullptr;
  void (*pack_rows_bf16)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                         std::byte* strip) = nullptr;

  /// Rows of 4-bit weights packed by pack_transposed as they are expanded, where there is a way.
  FourBitStrips four_bit = {};

  /// Packs `depth` rows of `columns` <= packed_rows elements of a row-major matrix as tiles of the left operand of the
  /// transposed product: column m becomes row m % rows of tile m / rows, tiles are tile_bytes apart, rows
  /// (left_by_rows) a tile's bytes / rows. Null: pack plainly. May write up to 64 bytes past a tile's end, and all
  /// tiles of the last kLeftGroup rows.
  void (*pack_left_transposed)(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* tiles,
                               int64_t tile_bytes) = nullptr;

  /// Products of few rows: sums[m * kDotRows + n] = x[m] . w[n] for m < rows <= kDotRows, n < columns <= kDotRows, in
  /// an order that depends on depth only. Rows of x and w are contiguous, strides in elements. Null: none.
  void (*dots)(int64_t rows, int64_t columns, int64_t depth, const std::byte* x, int64_t x_stride, const std::byte* w,
               int64_t w_stride, float* sums) = nullptr;
  /// The same with w in bf16, for a kernel in f32. Null: it is made f32 before.
  void (*dots_bf16)(int64_t rows, int64_t columns, int64_t depth, const std::byte* x, int64_t x_stride,
                    const std::byte* w, int64_t w_stride, float* sums) = nullptr;

  int64_t thin_rows = kThinRows;  ///< of a call of multiply_thin
  /// Whether that reads the wide matrix from a copy, whose rows are not so far apart that they share a few sets of the
  /// first cache level.
  bool copies_wide = false;
  /// Products over many rows of two matrices, a narrow and a wide one: sums[r * kThinColumns + n] += left(k, r) wide(k,
  /// n) over k < depth, for r < rows <= thin_rows and n < columns <= kThinColumns, in the order of multiply. `left` is
  /// the first of these columns in a strip of the narrow matrix (pack_rows); rows of the wide one are `stride` elements
  /// apart. Null: none.
  void (*multiply_thin)(int64_t rows, int64_t columns, int64_t depth, const std::byte* left, const std::byte* wide,
                        int64_t stride, float* sums) = nullptr;

  /// Writes rows x columns of f32 sums, output.sums_stride apart, to output.c.
  void (*store)(const float* sums, int64_t rows, int64_t columns, const TileOutput& output);

  /// Ends what multiply keeps of the calling thread's state; to be called after a job. Null: nothing.
  void (*release)() = nullptr;
};

/// Calls a kernel's release as it goes.
class KernelUse {
 public:
  explicit KernelUse(void (*release)()) : release_(release) {}
  KernelUse(const KernelUse&) = delete;
  KernelUse& operator=(const KernelUse&) = delete;
  ~KernelUse() {
    if (release_ != nullptr) release_();
  }

 private:
  void (*release_)();
};

/// Depths whose sums are kept in registers where A has to be packed: half a panel's, which is twice as wide then.
inline int64_t packed_left_depth(const GemmKernel& kernel) { return kernel.depth_block / 2; }

/// The kernel for inputs of dtype `input` (f32 or bf16) at instruction set level `level`. Its compute type is `input`,
/// or f32 where the CPU has no bf16 instructions.
const GemmKernel& gemm_kernel(Isa level, DType input);

/// One table per file.
extern const GemmKernel kGemmBaseline;
extern const GemmKernel kGemmAvx2;
extern const GemmKernel kGemmAvx512;
extern const GemmKernel kGemmAvx512Bf16;
extern const GemmKernel kGemmAmx;
extern const GemmKernel kGemmNeon;
extern const GemmKernel kGemmNeonBf16;

}  // namespace nibble::ops::cpu
