#pragma once
// Codes of 4 bits to f32 with AVX2: the bytes of the values by permutations, from which unpacking makes numbers.
// Include only in .cpp files.

#include "nibble/core/ops/cpu/four_bit/four_bit_planes.h"
#include "nibble/core/ops/cpu/x86/avx2.h"

namespace nibble::ops::cpu {

/// Bytes of the values of 16 codes, the lowest first.
class FourBitValuesAvx2 {
 public:
  NIBBLE_AVX2 explicit FourBitValuesAvx2(const FourBitPlanes& planes) {
    for (size_t i = 0; i < 4; ++i) {
      planes_[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(planes.bytes[i].data()));
    }
  }

  /// out[i]: the values of bytes 4 i to 4 i + 3 of both halves of `codes`, which are below 16. upper_halves: the lower
  /// two bytes of all values are 0.
  template <bool upper_halves>
  NIBBLE_AVX2 inline void get(__m256i codes, __m256 (&out)[4]) const {
    const __m256i third = _mm256_shuffle_epi8(planes_[2], codes), fourth = _mm256_shuffle_epi8(planes_[3], codes);
    const __m256i high[2] = {_mm256_unpacklo_epi8(third, fourth), _mm256_unpackhi_epi8(third, fourth)};
    __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if constexpr (!upper_halves) {
      const __m256i first = _mm256_shuffle_epi8(planes_[0], codes), second = _mm256_shuffle_epi8(planes_[1], codes);
      low[0] = _mm256_unpacklo_epi8(first, second);
      low[1] = _mm256_unpackhi_epi8(first, second);
    }
    for (size_t i = 0; i < 2; ++i) {
      out[2 * i] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low[i], high[i]));
      out[2 * i + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low[i], high[i]));
    }
  }

  /// The codes in the upper and in the lower halves of bytes.
  NIBBLE_AVX2 static __m256i upper(__m256i bytes) { return lower(_mm256_srli_epi16(bytes, 4)); }
  NIBBLE_AVX2 static __m256i lower(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }

 private:
  __m256i planes_[4];
};

}  // namespace nibble::ops::cpu
