#include "nibble/core/ops/cpu/x86/avx512.h"

#include <algorithm>

#include "nibble/core/ops/cpu/four_bit/four_bit_encode.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kLanes = 16;

NIBBLE_AVX512 inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>(avx512::low_bits(count)); }

NIBBLE_AVX512 float load(const std::byte* source, DType dtype, int64_t begin, int64_t count, float* values) {
  const std::byte* from = source + begin * static_cast<int64_t>(dtype_size(dtype));
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    __m512 x;
    if (dtype == DType::f32) {
      x = _mm512_maskz_loadu_ps(mask, from + i * 4);
    } else {
      const __m256i halves = _mm256_maskz_loadu_epi16(mask, from + i * 2);
      x = dtype == DType::bf16 ? avx512::widen(halves) : _mm512_cvtph_ps(halves);
    }
    // As integers magnitudes compare like the floats they are, with infinity and NaN on top.
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(x), magnitude));
    _mm512_mask_storeu_ps(values + i, mask, x);
  }
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(_mm512_reduce_max_epu32(largest)))));
}

/// A binary search of 16 numbers at once: where `step` thresholds on from the place so far is below the number, the
/// place moves on by `step`. `table` holds at each place the threshold to compare with.
NIBBLE_AVX512 inline __m512i search(__m512i place, __m512 scaled, __m512 table, int step) {
  const __mmask16 above = _mm512_cmp_ps_mask(scaled, _mm512_permutexvar_ps(place, table), _CMP_GT_OQ);
  return _mm512_mask_add_epi32(place, above, place, _mm512_set1_epi32(step));
}

NIBBLE_AVX512 void encode(const float* values, int64_t count, float inverse, const CodeRule& rule, uint8_t* packed) {
  const __m512 thresholds = _mm512_maskz_loadu_ps(first_lanes(15), rule.thresholds.data());
  const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512 tables[4];
  for (int level = 0; level < 4; ++level) {
    const __m512i at = _mm512_add_epi32(places, _mm512_set1_epi32((8 >> level) - 1));
    tables[level] = _mm512_permutexvar_ps(at, thresholds);
  }
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rule.codes.data())));
  const __m512 inverses = _mm512_set1_ps(inverse);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(count - i), values + i), inverses);
    __m512i place = _mm512_setzero_si512();
    for (int level = 0; level < 4; ++level) place = search(place, scaled, tables[level], 8 >> level);
    const __m512i code = _mm512_permutexvar_epi32(place, codes);
    // Pairs of lanes into the low byte of both: the first as its high nibble.
    const __m512i pairs = _mm512_or_si512(_mm512_slli_epi64(code, 4), _mm512_srli_epi64(code, 32));
    _mm_mask_storeu_epi8(packed + i / 2, first_lanes(std::min(kLanes, count - i + 1) / 2), _mm512_cvtepi64_epi8(pairs));
  }
}

}  // namespace

const BlockEncoder kEncodeAvx512 = {load, encode};

}  // namespace nibble::ops::cpu
