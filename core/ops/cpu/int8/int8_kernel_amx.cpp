#include "nibble/core/ops/cpu/int8/int8_tile_avx512.h"
#include "nibble/core/ops/cpu/x86/amx.h"

namespace nibble::ops::cpu {

namespace {

using namespace int8_avx512;

NIBBLE_AVX512 void add_dots(const Int8Tile& t, int64_t rows, const int32_t* dots) {
  for (int64_t r = 0; r < rows; ++r, dots += avx512::kWidth) {
    const __m512i too_large = _mm512_set1_epi32(static_cast<int>(kBias) * t.x_sums[r]);
    __m512i row[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      row[v] = _mm512_sub_epi32(_mm512_load_si512(dots + v * avx512::kLanes), too_large);
    }
    add_scaled(t, r, row);
  }
}

// In the last group of the depth W's last tile of rows may have some that are not there: they meet zeros of x.
void multiply(int64_t rows, const Int8Tile& t) {
  constexpr int64_t kTileDepth = amx::kTileBytes;
  alignas(64) int32_t dots[amx::kRows * avx512::kWidth];
  const auto* x = reinterpret_cast<const std::byte*>(t.x);
  const auto* w = reinterpret_cast<const std::byte*>(t.w);
  for (int64_t n = 0; n < avx512::kWidth;) {
    const amx::Block block(rows, avx512::kWidth - n);
    block.each([]<int kSum>(int64_t, int64_t) { amx::zero<kSum>(); });
    block.multiply<amx::Int8>(x, kInt8Group, w + n * kInt8Step, amx::kRightBytes,
                              (t.steps * kInt8Step + kTileDepth - 1) / kTileDepth);
    block.each([&]<int kSum>(int64_t row, int64_t column) {
      amx::store<kSum>(dots + row * avx512::kWidth + n + column, avx512::kWidth * int64_t{sizeof(int32_t)});
    });
    n += block.width();
  }
  add_dots(t, rows, dots);
}

}  // namespace

// W is rounded and packed as for AVX512-VNNI, whose bits these are.
const Int8Kernel kInt8Amx = [] {
  Int8Kernel kernel = kInt8Avx512Vnni;
  kernel.rows = amx::kRows;
  kernel.read_columns = kReadColumnsOfTiles;
  kernel.multiply = multiply;
  kernel.release = amx::release;
  return kernel;
}();

}  // namespace nibble::ops::cpu
