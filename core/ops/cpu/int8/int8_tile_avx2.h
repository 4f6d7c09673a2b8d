#pragma once
// What the two 8-bit kernels of 256-bit registers share: everything but the dot product. Include only in .cpp files.

#include <cstring>
#include <utility>

#include "nibble/core/ops/cpu/gemm/gemm_packing.h"
#include "nibble/core/ops/cpu/int8/int8_kernel.h"
#include "nibble/core/ops/cpu/x86/avx2.h"

namespace nibble::ops::cpu::int8_avx2 {

constexpr int64_t kLanes = 8, kVectors = 2, kWidth = kLanes * kVectors, kStripBytes = kWidth * kInt8Step;

/// Adds the dots to their sums, of which there are none yet if kFirst. Values of t are read once: a store might change
/// them for all that the compiler knows.
template <bool kFirst, int64_t R>
NIBBLE_AVX2 __attribute__((always_inline)) inline void add_scaled(const Int8Tile& t,
                                                                  const __m256i (&dots)[R][kVectors]) {
  const __m256 columns[kVectors] = {_mm256_loadu_ps(t.w_scales), _mm256_loadu_ps(t.w_scales + kLanes)};
  const float* scales = t.x_scales;
  float* sums = t.sums;
  const int64_t stride = t.sums_stride;
#pragma GCC unroll 6
  for (int64_t r = 0; r < R; ++r, sums += stride) {
    const __m256 scale = _mm256_set1_ps(scales[r]);
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; ++v) {
      const __m256 before = kFirst ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + v * kLanes);
      const __m256 term = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[r][v]), columns[v]);
      _mm256_storeu_ps(sums + v * kLanes, _mm256_fmadd_ps(term, scale, before));
    }
  }
}

/// Dot::add(sums, w, x): 8 sums of 4 products of bytes, w unsigned.
template <typename Dot, int64_t R>
NIBBLE_AVX2 void tile(const Int8Tile& t) {
  __m256i dots[R][kVectors];
#pragma GCC unroll 6
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < kVectors; ++v) {
      dots[r][v] = _mm256_set1_epi32(static_cast<int>(-(Dot::kLevels + 1)) * t.x_sums[r]);
    }
  }
  const int8_t* x = t.x;
  const uint8_t* w = t.w;
  for (int64_t s = 0; s < t.steps; ++s, x += kInt8Step, w += kStripBytes) {
    const __m256i row[kVectors] = {_mm256_load_si256(reinterpret_cast<const __m256i*>(w)),
                                   _mm256_load_si256(reinterpret_cast<const __m256i*>(w + 32))};
#pragma GCC unroll 6
    for (int64_t r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * kInt8Group, sizeof four);
      const __m256i left = _mm256_set1_epi32(four);
      for (int64_t v = 0; v < kVectors; ++v) Dot::add(dots[r][v], row[v], left);
    }
  }
  t.first ? add_scaled<true>(t, dots) : add_scaled<false>(t, dots);
}

template <int64_t kLevels>
NIBBLE_AVX2 void expand(const Int8Run& run, uint8_t* out) {
  alignas(16) uint8_t of[16];
  for (int half = 0; half < 2; ++half) {
    const __m256 values = _mm256_mul_ps(_mm256_loadu_ps(run.table + half * 8), _mm256_set1_ps(run.scale));
    alignas(32) int32_t codes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(codes),
                       _mm256_cvtps_epi32(_mm256_mul_ps(values, _mm256_set1_ps(run.inverse))));
    for (int i = 0; i < 8; ++i) of[half * 8 + i] = static_cast<uint8_t>(codes[i] + kLevels + 1);
  }
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(of)), low = _mm_set1_epi8(15);
  int64_t i = run.begin;
  const int64_t end = run.begin + run.count;
  if (i % 2 != 0) *out++ = of[run.packed[i++ / 2] & 15];
  for (; i + 32 <= end; i += 32, out += 32) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(run.packed + i / 2));
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(bytes, low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi8(even, odd));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi8(even, odd));
  }
  for (; i < end; ++i) *out++ = of[i % 2 == 0 ? run.packed[i / 2] >> 4 : run.packed[i / 2] & 15];
}

/// Columns are 8 rows of W here: a transposition of groups of 4 bytes, 8 at a time.
NIBBLE_AVX2 inline void pack_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                        std::byte* strip) {
  int64_t k = 0;
  for (; columns == kLanes && k + 32 <= depth; k += 32, strip += 8 * kStripBytes) {
    __m256i rows[8];
    for (int64_t n = 0; n < 8; ++n) {
      rows[n] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + n * stride + k));
    }
    avx2::transpose(rows);
    for (int i = 0; i < 8; ++i) _mm256_store_si256(reinterpret_cast<__m256i*>(strip + i * kStripBytes), rows[i]);
  }
  if (k < depth) cpu::pack_transposed<uint8_t, kLanes, kWidth, kInt8Step>(from + k, stride, columns, depth - k, strip);
}

NIBBLE_AVX2 inline void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                  std::byte* strip) {
  int64_t k = 0;
  for (; columns == kWidth && k + kInt8Step <= depth; k += kInt8Step, from += kInt8Step * stride) {
    __m128i rows[kInt8Step];
    for (int64_t i = 0; i < kInt8Step; ++i)
      rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
    const __m128i low = _mm_unpacklo_epi8(rows[0], rows[1]), high = _mm_unpackhi_epi8(rows[0], rows[1]);
    const __m128i low2 = _mm_unpacklo_epi8(rows[2], rows[3]), high2 = _mm_unpackhi_epi8(rows[2], rows[3]);
    auto* to = reinterpret_cast<__m128i*>(strip);
    _mm_store_si128(to, _mm_unpacklo_epi16(low, low2));
    _mm_store_si128(to + 1, _mm_unpackhi_epi16(low, low2));
    _mm_store_si128(to + 2, _mm_unpacklo_epi16(high, high2));
    _mm_store_si128(to + 3, _mm_unpackhi_epi16(high, high2));
    strip += kStripBytes;
  }
  if (k < depth) cpu::pack_rows<uint8_t, kWidth, kInt8Step>(from, stride, columns, depth - k, strip);
}

/// A kernel of tiles of up to kRows rows.
template <typename Dot, int64_t kRows>
constexpr Int8Kernel kernel(int64_t depth_block) {
  constexpr auto multiply = [](int64_t rows, const Int8Tile& t) {
    [&]<int64_t... r>(std::integer_sequence<int64_t, r...>) {
      constexpr decltype(&tile<Dot, 1>) kTiles[] = {tile<Dot, r + 1>...};
      kTiles[rows - 1](t);
    }
    (std::make_integer_sequence<int64_t, kRows>());
  };
  return {.levels = Dot::kLevels,
          .bias = Dot::kLevels + 1,
          .step = kInt8Step,
          .rows = kRows,
          .lanes = kLanes,
          .width = kWidth,
          .depth_block = depth_block,
          .panel_columns = 128,
          .multiply = multiply,
          .expand = expand<Dot::kLevels>,
          .pack_transposed = pack_transposed,
          .pack_rows = pack_rows};
}

}  // namespace nibble::ops::cpu::int8_avx2
