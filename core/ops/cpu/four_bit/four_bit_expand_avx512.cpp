#include <algorithm>

#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"
#include "nibble/core/ops/cpu/x86/avx512.h"

namespace nibble::ops::cpu {

namespace {

// A permutation looks only at the low bits of an index, so the two codes of a byte need no masking: one lane gets the
// byte shifted right by four, its neighbour the byte as it is; the other way round if low_first.
template <bool low_first>
constexpr unsigned kEven = low_first ? 0 : 4;
template <bool low_first>
constexpr unsigned kOdd = 4 - kEven<low_first>;

/// 32 elements from 16 bytes.
template <bool low_first>
NIBBLE_AVX512 inline __m512i expand32(__m128i codes, __m512i values) {
  const __m512i byte = _mm512_cvtepu8_epi32(codes);
  return _mm512_permutexvar_epi16(
      _mm512_or_si512(_mm512_srli_epi32(byte, kEven<low_first>), _mm512_slli_epi32(byte, 16 - kOdd<low_first>)),
      values);
}

/// 16 elements from 8 bytes.
template <bool low_first>
NIBBLE_AVX512 inline __m512 expand16(__m128i codes, __m512 values) {
  const __m512i byte = _mm512_cvtepu8_epi64(codes);
  return _mm512_permutexvar_ps(
      _mm512_or_si512(_mm512_srli_epi64(byte, kEven<low_first>), _mm512_slli_epi64(byte, 32 - kOdd<low_first>)),
      values);
}

NIBBLE_AVX512 inline __m128i load16(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
NIBBLE_AVX512 inline __m128i load8(const uint8_t* bytes) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
}
/// The bytes that hold `elements` codes, not one more.
NIBBLE_AVX512 inline __m128i load_some(const uint8_t* bytes, int64_t elements) {
  return _mm_maskz_loadu_epi8(static_cast<__mmask16>(avx512::low_bits((elements + 1) / 2)), bytes);
}

template <bool low_first>
NIBBLE_AVX512 void blocks_to_f32(const FourBitRun& run, float* out) {
  const __m512 table = _mm512_loadu_ps(run.table);
  const int64_t end = run.begin + run.count;
  const float* scale = run.scales;
  int64_t block_end = (run.begin / run.block_size + 1) * run.block_size;
  for (int64_t begin = run.begin; begin < end; ++scale, block_end += run.block_size) {
    const int64_t stop = std::min(end, block_end);
    const __m512 values = _mm512_mul_ps(table, _mm512_set1_ps(*scale));
    if (begin % 2 != 0) *out++ = run.table[(run.packed[begin++ / 2] >> kOdd<low_first>)&15] * *scale;
    const uint8_t* bytes = run.packed + begin / 2;
    for (; begin + 16 <= stop; begin += 16, bytes += 8, out += 16) {
      _mm512_storeu_ps(out, expand16<low_first>(load8(bytes), values));
    }
    if (const int64_t rest = stop - begin; rest > 0) {
      const auto mask = static_cast<__mmask16>(avx512::low_bits(rest));
      _mm512_mask_storeu_ps(out, mask, expand16<low_first>(load_some(bytes, rest), values));
      out += rest;
      begin = stop;
    }
  }
}

template <bool low_first>
NIBBLE_AVX512 void blocks_to_bf16(const FourBitRun& run, bf16* out) {
  const __m512 table = _mm512_loadu_ps(run.table);
  const int64_t end = run.begin + run.count;
  const float* scale = run.scales;
  int64_t block_end = (run.begin / run.block_size + 1) * run.block_size;
  for (int64_t begin = run.begin; begin < end; ++scale, block_end += run.block_size) {
    const int64_t stop = std::min(end, block_end);
    const __m256i rounded = avx512::narrow(_mm512_mul_ps(table, _mm512_set1_ps(*scale)));
    const __m512i values = _mm512_broadcast_i64x4(rounded);
    if (begin % 2 != 0) *out++ = bf16(run.table[(run.packed[begin++ / 2] >> kOdd<low_first>)&15] * *scale);
    const uint8_t* bytes = run.packed + begin / 2;
    for (; begin + 32 <= stop; begin += 32, bytes += 16, out += 32) {
      _mm512_storeu_si512(out, expand32<low_first>(load16(bytes), values));
    }
    if (const int64_t rest = stop - begin; rest > 0) {
      _mm512_mask_storeu_epi16(out, avx512::low_bits(rest), expand32<low_first>(load_some(bytes, rest), values));
      out += rest;
      begin = stop;
    }
  }
}

void to_f32(const FourBitRun& run, float* out) {
  (run.low_first ? blocks_to_f32<true> : blocks_to_f32<false>)(run, out);
}

void to_bf16(const FourBitRun& run, bf16* out) {
  (run.low_first ? blocks_to_bf16<true> : blocks_to_bf16<false>)(run, out);
}

}  // namespace

const FourBitExpander kFourBitExpandAvx512 = {to_f32, to_bf16};

}  // namespace nibble::ops::cpu
