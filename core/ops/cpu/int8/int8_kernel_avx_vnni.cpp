#include "nibble/core/ops/cpu/int8/int8_tile_avx2.h"

namespace nibble::ops::cpu {

namespace {

/// AVX-VNNI's own encoding, which CPUs without AVX-512 have; as assembly, see the kernel for those with.
struct Fours {
  static constexpr int64_t kLevels = 127;
  NIBBLE_AVX2 static void add(__m256i& sums, __m256i w, __m256i x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(w), "x"(x));
  }
};

// 16 registers: 6 x 2 sums, two of W, one element of x.
constexpr int64_t kRows = 6;

void multiply(int64_t rows, const Int8Tile& t) {
  using namespace int8_avx2;
  constexpr decltype(&tile<Fours, 1>) kTiles[kRows] = {tile<Fours, 1>, tile<Fours, 2>, tile<Fours, 3>,
                                                       tile<Fours, 4>, tile<Fours, 5>, tile<Fours, 6>};
  kTiles[rows - 1](t);
}

}  // namespace

const Int8Kernel kInt8AvxVnni = {
    .levels = Fours::kLevels,
    .bias = Fours::kLevels + 1,
    .step = kInt8Step,
    .rows = kRows,
    .lanes = int8_avx2::kLanes,
    .width = int8_avx2::kWidth,
    .depth_block = 4096,  // 4096 x 128 bytes are 512 KB of the 1.25 MB and more of the CPUs that have it
    .panel_columns = 128,
    .multiply = multiply,
    .expand = int8_avx2::expand<Fours::kLevels>,
    .pack_transposed = int8_avx2::pack_transposed,
    .pack_rows = int8_avx2::pack_rows,
};

}  // namespace nibble::ops::cpu
