#include "nibble/core/ops/cpu/int8/int8_tile_avx2.h"

namespace nibble::ops::cpu {

namespace {

/// Pairs are summed in 16 bits, which saturate: 2 * 127 * 127 fit, so weights have 63 levels, 1 ... 127 with the bias.
struct Pairs {
  static constexpr int64_t kLevels = 63;
  NIBBLE_AVX2 static void add(__m256i& sums, __m256i w, __m256i x) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
  }
};

// 16 registers: 4 x 2 sums, two of W, one element of x, the ones, two terms under way.
constexpr int64_t kRows = 4;

void multiply(int64_t rows, const Int8Tile& t) {
  using namespace int8_avx2;
  constexpr decltype(&tile<Pairs, 1>) kTiles[kRows] = {tile<Pairs, 1>, tile<Pairs, 2>, tile<Pairs, 3>, tile<Pairs, 4>};
  kTiles[rows - 1](t);
}

}  // namespace

const Int8Kernel kInt8Avx2 = {
    .levels = Pairs::kLevels,
    .bias = Pairs::kLevels + 1,
    .step = kInt8Step,
    .rows = kRows,
    .lanes = int8_avx2::kLanes,
    .width = int8_avx2::kWidth,
    .depth_block = 1024,  // 1024 x 128 bytes are half of the 256 KB of the CPUs that end at AVX2
    .panel_columns = 128,
    .multiply = multiply,
    .expand = int8_avx2::expand<Pairs::kLevels>,
    .pack_transposed = int8_avx2::pack_transposed,
    .pack_rows = int8_avx2::pack_rows,
};

}  // namespace nibble::ops::cpu
