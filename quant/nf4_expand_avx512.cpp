#include <algorithm>

#include "nibble/core/base/avx512.h"
#include "nibble/quant/nf4_expand.h"

namespace nibble {

namespace {

// A permutation looks only at the low bits of an index, so the two codes of a byte need no masking: one lane gets the
// byte shifted right by four, its neighbour the byte as it is.

NIBBLE_AVX512 inline __mmask16 bytes_mask(int64_t elements) {
  return static_cast<__mmask16>((1u << std::min<int64_t>(16, (elements + 1) / 2)) - 1);
}

NIBBLE_AVX512 void to_f32(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax,
                          float* out) {
  const __m512 values = _mm512_mul_ps(_mm512_loadu_ps(table), _mm512_set1_ps(absmax));
  if (begin % 2 != 0 && count > 0) {
    *out++ = table[packed[begin / 2] & 15] * absmax;
    ++begin, --count;
  }
  const uint8_t* bytes = packed + begin / 2;
  for (int64_t i = 0; i < count; i += 16, bytes += 8) {
    const int64_t left = std::min<int64_t>(16, count - i);
    const __m128i codes = left == 16 ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))
                                     : _mm_maskz_loadu_epi8(bytes_mask(left), bytes);
    const __m512i byte = _mm512_cvtepu8_epi64(codes);
    const __m512i index = _mm512_or_si512(_mm512_srli_epi64(byte, 4), _mm512_slli_epi64(byte, 32));
    const __m512 expanded = _mm512_permutexvar_ps(index, values);
    if (left == 16) {
      _mm512_storeu_ps(out + i, expanded);
    } else {
      _mm512_mask_storeu_ps(out + i, static_cast<__mmask16>((1u << left) - 1), expanded);
    }
  }
}

NIBBLE_AVX512 void to_bf16(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax,
                           bf16* out) {
  const __m256i rounded = avx512::narrow(_mm512_mul_ps(_mm512_loadu_ps(table), _mm512_set1_ps(absmax)));
  const __m512i values = _mm512_broadcast_i64x4(rounded);
  if (begin % 2 != 0 && count > 0) {
    *out++ = bf16(table[packed[begin / 2] & 15] * absmax);
    ++begin, --count;
  }
  const uint8_t* bytes = packed + begin / 2;
  for (int64_t i = 0; i < count; i += 32, bytes += 16) {
    const int64_t left = std::min<int64_t>(32, count - i);
    const __m128i codes = left == 32 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))
                                     : _mm_maskz_loadu_epi8(bytes_mask(left), bytes);
    const __m512i byte = _mm512_cvtepu8_epi32(codes);
    const __m512i index = _mm512_or_si512(_mm512_srli_epi32(byte, 4), _mm512_slli_epi32(byte, 16));
    const __m512i expanded = _mm512_permutexvar_epi16(index, values);
    if (left == 32) {
      _mm512_storeu_si512(out + i, expanded);
    } else {
      _mm512_mask_storeu_epi16(out + i, (1u << left) - 1, expanded);
    }
  }
}

}  // namespace

const Nf4Expander kNf4ExpandAvx512 = {to_f32, to_bf16};

}  // namespace nibble
