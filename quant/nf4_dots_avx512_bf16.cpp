#include "nibble/core/base/avx512.h"
#include "nibble/quant/nf4_dots.h"

namespace nibble {

namespace {

// One register of codes: 32 words of 4, two halves of 64.
constexpr int64_t kChunk = 128, kWords = 32;

}  // namespace

// A word of codes holds, from its lowest bits on, those of elements 1, 0, 3 and 2 of four.
NIBBLE_AVX512_BF16 void nf4_dots_reorder(const bf16* x, int64_t depth, bf16* reordered) {
  for (int64_t chunk = 0; chunk < depth; chunk += kChunk, reordered += kChunk) {
    for (int64_t i = 0; i < 4; ++i) {
      const __m512i four = _mm512_maskz_loadu_epi16(avx512::low_bits(depth - chunk - i * 32), x + chunk + i * 32);
      auto* to = reinterpret_cast<__m128i*>(reordered + i * 8);
      _mm_storeu_si128(to, _mm512_cvtepi64_epi16(_mm512_srli_epi64(four, 16)));
      _mm_storeu_si128(to + 4, _mm512_cvtepi64_epi16(four));
      _mm_storeu_si128(to + 8, _mm512_cvtepi64_epi16(_mm512_srli_epi64(four, 48)));
      _mm_storeu_si128(to + 12, _mm512_cvtepi64_epi16(_mm512_srli_epi64(four, 32)));
    }
  }
}

NIBBLE_AVX512_BF16 float nf4_dot_avx512_bf16(const uint8_t* packed, int64_t depth, const float* table,
                                             const float* scales, const bf16* reordered) {
  const __m512 values = _mm512_loadu_ps(table);
  // Four bits choose in a block's table; the fifth chooses the second block's table in the upper half.
  const __m512i code_bits = _mm512_set1_epi16(15);
  const __m512i block_bit = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  constexpr int kAndOr = 0xea;  // (a & b) | c
  __m512 sums[4];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k += kChunk, packed += kChunk / 2, scales += 2, reordered += kChunk) {
    // The next row follows this one in memory, on a page that no hardware fetches ahead.
    _mm_prefetch(reinterpret_cast<const char*>(packed + 4096), _MM_HINT_T0);
    const bool whole = k + kChunk <= depth;
    const __m512i codes = whole ? _mm512_loadu_si512(packed)
                                : _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed)));
    const __m512 first = _mm512_mul_ps(values, _mm512_set1_ps(scales[0]));
    const __m512 second = _mm512_mul_ps(values, _mm512_set1_ps(scales[whole ? 1 : 0]));
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    const __m512i shifted[4] = {codes, _mm512_srli_epi16(codes, 4), _mm512_srli_epi16(codes, 8),
                                _mm512_srli_epi16(codes, 12)};
    for (int part = 0; part < 4; ++part) {
      const __m512i index = _mm512_ternarylogic_epi32(shifted[part], code_bits, block_bit, kAndOr);
      sums[part] = _mm512_dpbf16_ps(sums[part], reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(index, both)),
                                    reinterpret_cast<__m512bh>(_mm512_loadu_si512(reordered + part * kWords)));
    }
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

}  // namespace nibble
