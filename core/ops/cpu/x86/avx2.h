#pragma once
// Small pieces for functions compiled for AVX2 and chosen at run time (isa()). Include only in .cpp files.

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

/// Marks a function of level Isa::avx2 and above.
#define NIBBLE_AVX2 __attribute__((target("avx2,fma")))

namespace nibble::avx2 {

/// A mask of the first `count` lanes of 8; all for 8 and more, none below 1.
NIBBLE_AVX2 inline __m256i low_lanes(int64_t count) {
  const auto lanes = static_cast<int32_t>(std::clamp<int64_t>(count, 0, 8));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// The first `count` of 8 f32, and zeros, whose memory is not touched.
NIBBLE_AVX2 inline __m256 load(const float* from, int64_t count) {
  return count >= 8 ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, low_lanes(count));
}

/// The first `count` of 8 f32. (A store with a mask is slow on some CPUs.)
NIBBLE_AVX2 inline void store(float* to, __m256 value, int64_t count) {
  if (count >= 8) return _mm256_storeu_ps(to, value);
  _mm256_maskstore_ps(to, low_lanes(count), value);
}

/// The sum of 8 f32.
NIBBLE_AVX2 inline float sum(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/// Columns 0..7 of rows of 8 groups of 4 bytes.
NIBBLE_AVX2 inline void transpose(__m256i rows[8]) {
  __m256i t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    rows[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
    t[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) rows[i] = t[i];
}

/// 8 bf16 as f32.
NIBBLE_AVX2 inline __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/// 8 f32 rounded to bf16, to nearest even; NaN stays NaN.
NIBBLE_AVX2 inline __m256 round_to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256 nearest = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan);
  return _mm256_and_ps(nearest, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(0xffff0000))));
}

/// The same as bf16.
NIBBLE_AVX2 inline __m128i narrow(__m256 value) {
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(round_to_bf16(value)), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  return _mm256_castsi256_si128(packed);
}

}  // namespace nibble::avx2
