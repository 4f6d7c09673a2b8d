#include "nibble/core/ops/cpu/four_bit/four_bit_strip.h"

#include <algorithm>

#include "nibble/core/ops/cpu/gemm/gemm_avx512.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kPart = kFourBitStripsAvx512Bf16.part;
constexpr int64_t kRows = kFourBitStripRows, kGroup = 8;  // elements of 4 bytes of codes
constexpr int64_t kChunk = kRows * kGroup, kParts = kRows;

// Element 2i is the i-th of 16, element 2i + 1 the i-th of those behind them.
alignas(64) constexpr auto kInterleaved = [] {
  std::array<uint16_t, 32> order{};
  for (size_t i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  return order;
}();

/// The scales of up to kParts parts: one register each, a row a lane; 0 in lanes without a row.
NIBBLE_AVX512_BF16 inline void load_scales(const FourBitStripRows& w, int64_t part, __m512i (&scales)[kParts]) {
  const auto present = static_cast<__mmask16>(avx512::low_bits(w.depth / kPart - part));
  for (int64_t r = 0; r < kRows; ++r) {
    scales[r] =
        r < w.rows ? _mm512_maskz_loadu_epi32(present, w.scales + r * w.scale_stride + part) : _mm512_setzero_si512();
  }
  avx512::transpose(scales);
}

/// Codes of kGroup elements become their four pairs. A permutation looks only at the low bits of an index.
NIBBLE_AVX512_BF16 inline void expand(__m512i codes, __m512 values, __m512 scales, std::byte* strip) {
  const __m512i order = _mm512_load_si512(kInterleaved.data());
#pragma GCC unroll 4
  for (unsigned pair = 0; pair < 4; ++pair, strip += avx512::kStripBytes) {
    const __m512i low = _mm512_srli_epi32(codes, 8 * pair), high = _mm512_srli_epi32(codes, 8 * pair + 4);
    const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(high, values), scales);
    const __m512 odd = _mm512_mul_ps(_mm512_permutexvar_ps(low, values), scales);
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
    _mm512_store_si512(strip, _mm512_permutexvar_epi16(order, both));
  }
}

}  // namespace

NIBBLE_AVX512_BF16 void four_bit_strip_avx512_bf16(const FourBitStripRows& w, bool /*rounded*/, std::byte* strip) {
  const __m512 values = _mm512_loadu_ps(w.table);
  __m512i scales[kParts];
  for (int64_t k = 0; k < w.depth; k += kChunk) {
    const int64_t part = k / kPart;
    if (part % kParts == 0) load_scales(w, part, scales);
    const int64_t bytes = std::min(kChunk, w.depth - k) / 2;
    const __mmask64 present = bytes == 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
    __m512i codes[kRows];
    for (int64_t r = 0; r < kRows; ++r) {
      const uint8_t* row = w.packed + r * w.row_bytes + k / 2;
      codes[r] = r < w.rows ? _mm512_maskz_loadu_epi8(present, row) : _mm512_setzero_si512();
      if (r < w.rows) _mm_prefetch(row + kChunk, _MM_HINT_T0);
    }
    avx512::transpose(codes);
    for (int64_t g = 0; g < bytes / 4; ++g, strip += 4 * avx512::kStripBytes) {
      expand(codes[g], values, _mm512_castsi512_ps(scales[(part + g / 8) % kParts]), strip);
    }
  }
}

// A register holds the values of both rows of a step, so that one permutation makes pairs. It looks only at the low
// five bits of an index: a code, and which row it is of.
NIBBLE_AVX512_BF16 void four_bit_depths_avx512_bf16(const FourBitStripRows& w, std::byte* strip, int64_t strip_bytes) {
  const __m512 values = _mm512_loadu_ps(w.table);
  const __m512i code = _mm512_set1_epi16(15), second = _mm512_set1_epi32(16 << 16);
  const __m512i first_half = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i second_half = _mm512_add_epi32(first_half, _mm512_set1_epi32(8));
  for (int64_t r = 0; r < w.rows; r += 2, strip += avx512::kStripBytes) {
    const int64_t other = std::min(r + 1, w.rows - 1);
    const uint8_t *even = w.packed + r * w.row_bytes, *odd = w.packed + other * w.row_bytes;
    const float *even_scales = w.scales + r * w.scale_stride, *odd_scales = w.scales + other * w.scale_stride;
    std::byte* to = strip;
    for (int64_t k = 0; k < w.depth; k += kPart, to += strip_bytes) {
      const float odd_scale = other > r ? *odd_scales++ : 0;
      const auto pairs = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
          _mm512_mul_ps(values, _mm512_set1_ps(odd_scale)), _mm512_mul_ps(values, _mm512_set1_ps(*even_scales++))));
      _mm_prefetch(even + w.rows * w.row_bytes + k / 2, _MM_HINT_T0);
      _mm_prefetch(odd + w.rows * w.row_bytes + k / 2, _MM_HINT_T0);
      for (int64_t i = 0; i < kPart / 2; i += kPart / 4) {
        const auto* even_codes = reinterpret_cast<const __m128i*>(even + k / 2 + i);
        const auto* odd_codes = reinterpret_cast<const __m128i*>(odd + k / 2 + i);
        const __m512i codes = _mm512_or_si512(_mm512_cvtepu8_epi32(_mm_loadu_si128(even_codes)),
                                              _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(odd_codes)), 16));
        const __m512i high = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(codes, 4), code), second);
        const __m512i low = _mm512_or_si512(_mm512_and_si512(codes, code), second);
        const __m512i left = _mm512_permutexvar_epi16(high, pairs), right = _mm512_permutexvar_epi16(low, pairs);
        _mm512_store_si512(to + i * 8, _mm512_permutex2var_epi32(left, first_half, right));
        _mm512_store_si512(to + i * 8 + 64, _mm512_permutex2var_epi32(left, second_half, right));
      }
    }
  }
}

}  // namespace nibble::ops::cpu
