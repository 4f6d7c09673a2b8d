#include "nibble/core/base/avx512.h"
#include "nibble/core/base/cpu_features.h"
#include "nibble/quant/nf4_dots.h"

namespace nibble {

namespace {

#define NIBBLE_AVX512_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx512bf16,avx512vbmi")))

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

bool nf4_scales_fast() { return isa() >= Isa::avx512_bf16 && __builtin_cpu_supports("avx512vbmi"); }

NIBBLE_AVX512_VBMI void nf4_scales_avx512_vbmi(const uint8_t* codes, int64_t count, const uint8_t* planes, float factor,
                                               float offset, float* out) {
  constexpr int64_t kCodes = 64, kLanes = 16;
  // Codes 16 j + 4 l + i go to byte 16 l + 4 j + i: what the unpacking below leaves in order.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512 factors = _mm512_set1_ps(factor), offsets = _mm512_set1_ps(offset);
  for (int64_t begin = 0; begin < count; begin += kCodes) {
    const __mmask64 mask = count - begin >= kCodes ? ~__mmask64{0} : (__mmask64{1} << (count - begin)) - 1;
    const __m512i index = _mm512_permutexvar_epi32(order, _mm512_maskz_loadu_epi8(mask, codes + begin));
    const __mmask64 upper = _mm512_movepi8_mask(index);  // codes from 128 on
    __m512i bytes[4];
    for (int plane = 0; plane < 4; ++plane) {
      const uint8_t* table = planes + plane * 256;
      const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), index, _mm512_loadu_si512(table + 64));
      const __m512i high =
          _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), index, _mm512_loadu_si512(table + 192));
      bytes[plane] = _mm512_mask_blend_epi8(upper, low, high);
    }
    const __m512i low_words[2] = {_mm512_unpacklo_epi8(bytes[0], bytes[1]), _mm512_unpackhi_epi8(bytes[0], bytes[1])};
    const __m512i high_words[2] = {_mm512_unpacklo_epi8(bytes[2], bytes[3]), _mm512_unpackhi_epi8(bytes[2], bytes[3])};
    for (int quarter = 0; quarter < 4; ++quarter) {
      const __m512i low = low_words[quarter / 2], high = high_words[quarter / 2];
      const __m512 values =
          _mm512_castsi512_ps(quarter % 2 == 0 ? _mm512_unpacklo_epi16(low, high) : _mm512_unpackhi_epi16(low, high));
      _mm512_mask_storeu_ps(out + begin + quarter * kLanes, static_cast<__mmask16>(mask >> (quarter * kLanes)),
                            _mm512_add_ps(_mm512_mul_ps(values, factors), offsets));
    }
  }
}

NIBBLE_AVX512_BF16 float nf4_dot_avx512_bf16(const uint8_t* packed, int64_t depth, const float* table,
                                             const float* scales, const bf16* reordered) {
  constexpr int64_t kAhead = 2048;  // bytes: the next row, on a page that no hardware fetches ahead
  const __m512 values = _mm512_loadu_ps(table);
  // Four bits choose in a block's table; the fifth chooses the second block's table in the upper half.
  const __m512i code_bits = _mm512_set1_epi16(15);
  const __m512i block_bit = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  constexpr int kAndOr = 0xea;  // (a & b) | c
  __m512 sums[4];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k += kChunk, packed += kChunk / 2, scales += 2, reordered += kChunk) {
    _mm_prefetch(reinterpret_cast<const char*>(packed + kAhead), _MM_HINT_T0);
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
