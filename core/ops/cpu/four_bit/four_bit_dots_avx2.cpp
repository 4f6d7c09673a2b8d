#include <algorithm>

#include "nibble/core/ops/cpu/four_bit/four_bit_dots.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_values_avx2.h"

namespace nibble::ops::cpu {

namespace {

// Codes of a block, whose scale is one: a register.
constexpr int64_t kBlock = 64, kBytes = kBlock / 2, kLanes = 8;

NIBBLE_AVX2 inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }
NIBBLE_AVX2 inline __m256 load8(const bf16* from) {
  return avx2::widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// The upper halves of a block's bytes are its even elements, and FourBitValuesAvx2 takes two groups of four bytes at
// once: sixteen bytes apart lie 32 elements.
template <typename X>
NIBBLE_AVX2 void reorder(const X* x, int64_t depth, float* reordered) {
  for (int64_t block = 0; block < depth; block += kBlock, reordered += kBlock) {
    for (int64_t i = 0; i < kBlock / 2; i += kLanes) {
      const __m256 first = load8(x + block + i), second = load8(x + block + kBlock / 2 + i);
      const __m256 low = _mm256_permute2f128_ps(first, second, 0x20);
      const __m256 high = _mm256_permute2f128_ps(first, second, 0x31);
      _mm256_storeu_ps(reordered + i, _mm256_shuffle_ps(low, high, 0x88));
      _mm256_storeu_ps(reordered + kBlock / 2 + i, _mm256_shuffle_ps(low, high, 0xdd));
    }
  }
}

template <bool upper_halves>
NIBBLE_AVX2 inline void add_codes(__m256i codes, const FourBitValuesAvx2& table, const float* x, __m256 (&sums)[2]) {
  __m256 values[4];
  table.get<upper_halves>(codes, values);
  for (int64_t i = 0; i < 4; ++i)
    sums[i % 2] = _mm256_fmadd_ps(values[i], _mm256_loadu_ps(x + i * kLanes), sums[i % 2]);
}

template <bool upper_halves>
NIBBLE_AVX2 void add_rows(const FourBitDotsRows& w, const FourBitPlanes& planes, const float* x, float* sums) {
  constexpr int64_t kAhead = 16384;  // as far as four_bit_dots_avx512_bf16 asks for codes
  const FourBitValuesAvx2 table(planes);
  const uint8_t* rows[kFourBitDotsRows];
  const float* scales[kFourBitDotsRows];
  __m256 totals[kFourBitDotsRows];
  for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
    rows[r] = w.packed_of(r);
    scales[r] = w.scales_of(r);
    totals[r] = _mm256_setzero_ps();
  }
  const auto* ahead = reinterpret_cast<const char*>(w.packed) + std::max(kAhead, kFourBitDotsRows * w.row_bytes);
  for (int64_t block = 0; block < w.depth / kBlock; ++block, x += kBlock) {
    for (int64_t r = 0; r < kFourBitDotsRows; ++r) {
      if (r % 2 == 0) _mm_prefetch(ahead + (kFourBitDotsRows * block + r) * kBytes, _MM_HINT_T1);
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + block * kBytes));
      __m256 of_block[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
      add_codes<upper_halves>(FourBitValuesAvx2::upper(bytes), table, x, of_block);
      add_codes<upper_halves>(FourBitValuesAvx2::lower(bytes), table, x + kBlock / 2, of_block);
      const __m256 scale = _mm256_broadcast_ss(scales[r] + block);
      totals[r] = _mm256_fmadd_ps(_mm256_add_ps(of_block[0], of_block[1]), scale, totals[r]);
    }
  }
  for (int64_t r = 0; r < w.rows; ++r) sums[r] = avx2::sum(totals[r]);
}

}  // namespace

void four_bit_dots_reorder_avx2(const float* x, int64_t depth, float* reordered) { reorder(x, depth, reordered); }
void four_bit_dots_reorder_avx2(const bf16* x, int64_t depth, float* reordered) { reorder(x, depth, reordered); }

void four_bit_dots_avx2(const FourBitDotsRows& w, const FourBitPlanes& planes, const float* reordered, float* sums) {
  (planes.upper_halves ? add_rows<true> : add_rows<false>)(w, planes, reordered, sums);
}

}  // namespace nibble::ops::cpu
