#include <cstring>

#include "nibble/core/ops/cpu/int8/int8_tile_avx512.h"

namespace nibble::ops::cpu {

namespace {

using namespace int8_avx512;

// The tile of the bf16 kernel: 24 sums, four registers of W and one element of x.
constexpr int64_t kRows = 6;

/// Adds the products of four depths of a row.
NIBBLE_AVX512_VNNI __attribute__((always_inline)) inline void add_products(const int8_t* x,
                                                                           const __m512i (&w)[kVectors],
                                                                           __m512i (&dots)[kVectors]) {
  int32_t four;
  std::memcpy(&four, x, sizeof four);
  const __m512i left = _mm512_set1_epi32(four);
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) nibble::avx512::add_dots(dots[v], w[v], left);
}

NIBBLE_AVX512_VNNI __attribute__((always_inline)) inline void load_step(const uint8_t* w, __m512i (&to)[kVectors]) {
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) to[v] = _mm512_load_si512(w + v * 64);
}

template <int64_t R>
NIBBLE_AVX512_VNNI void tile(const Int8Tile& t) {
  __m512i dots[R][kVectors], row[kVectors];
#pragma GCC unroll 6
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) dots[r][v] = _mm512_set1_epi32(static_cast<int>(-kBias) * t.x_sums[r]);
  }
  const int8_t* x = t.x;
  const uint8_t* w = t.w;
  for (int64_t s = 1; s < t.steps; ++s, x += kInt8Step, w += avx512::kStripBytes) {
    load_step(w, row);
    _mm_prefetch(x + R * kInt8Group + s * (R - 1) * kInt8Step, _MM_HINT_T0);  // rows of the next tile, as many bytes
#pragma GCC unroll 6
    for (int64_t r = 0; r < R; ++r) add_products(x + r * kInt8Group, row, dots[r]);
  }
  // The last step by rows: while the dots of one become floats, the next one's are multiplied.
  load_step(w, row);
#pragma GCC unroll 6
  for (int64_t r = 0; r < R; ++r) {
    add_products(x + r * kInt8Group, row, dots[r]);
    add_scaled(t, r, dots[r]);
  }
}

void multiply(int64_t rows, const Int8Tile& t) {
  constexpr decltype(&tile<1>) kTiles[kRows] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  kTiles[rows - 1](t);
}

NIBBLE_AVX512 void expand(const Int8Run& run, uint8_t* out) {
  const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(run.table), _mm512_set1_ps(run.scale));
  const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(values, _mm512_set1_ps(run.inverse)));
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(codes, _mm512_set1_epi32(kBias)));
  const __m512i table = _mm512_broadcast_i32x4(bytes), low = _mm512_set1_epi8(15);
  alignas(16) uint8_t of[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(of), bytes);
  int64_t i = run.begin;
  const int64_t end = run.begin + run.count;
  if (i % 2 != 0) *out++ = of[run.packed[i++ / 2] & 15];
  for (; i + 64 <= end; i += 64, out += 64) {
    const __m512i word = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(run.packed + i / 2)));
    const __m512i pair = _mm512_and_si512(_mm512_or_si512(_mm512_srli_epi16(word, 4), _mm512_slli_epi16(word, 8)), low);
    _mm512_storeu_si512(out, _mm512_shuffle_epi8(table, pair));
  }
  for (; i < end; ++i) *out++ = of[i % 2 == 0 ? run.packed[i / 2] >> 4 : run.packed[i / 2] & 15];
}

NIBBLE_AVX512 void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  // Columns 16 j + 4 l ... + 3 of a row move to lane l, so that what the lanes interleave are neighbours.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __mmask64 mask = columns >= 64 ? ~uint64_t{0} : (uint64_t{1} << columns) - 1;
  for (int64_t k = 0; k < depth; k += kInt8Step, from += kInt8Step * stride, strip += avx512::kStripBytes) {
    __m512i rows[kInt8Step];
    for (int64_t i = 0; i < kInt8Step; ++i) {
      const __mmask64 present = k + i < depth ? mask : 0;
      rows[i] = _mm512_permutexvar_epi32(order, _mm512_maskz_loadu_epi8(present, from + i * stride));
    }
    const __m512i low = _mm512_unpacklo_epi8(rows[0], rows[1]), high = _mm512_unpackhi_epi8(rows[0], rows[1]);
    const __m512i low2 = _mm512_unpacklo_epi8(rows[2], rows[3]), high2 = _mm512_unpackhi_epi8(rows[2], rows[3]);
    _mm512_store_si512(strip, _mm512_unpacklo_epi16(low, low2));
    _mm512_store_si512(strip + 64, _mm512_unpackhi_epi16(low, low2));
    _mm512_store_si512(strip + 128, _mm512_unpacklo_epi16(high, high2));
    _mm512_store_si512(strip + 192, _mm512_unpackhi_epi16(high, high2));
  }
}

}  // namespace

const Int8Kernel kInt8Avx512Vnni = {
    .levels = kLevels,
    .bias = kBias,
    .step = kInt8Step,
    .rows = kRows,
    .lanes = avx512::kLanes,
    .width = avx512::kWidth,
    .depth_block = 4096,  // 4096 x 128 bytes are 512 KB, see kGemmAvx512
    .panel_columns = 128,
    .multiply = multiply,
    .expand = expand,
    .pack_transposed = avx512::pack_transposed<1>,
    .pack_rows = pack_rows,
};

}  // namespace nibble::ops::cpu
