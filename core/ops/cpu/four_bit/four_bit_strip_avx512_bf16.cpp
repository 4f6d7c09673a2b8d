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

}  // namespace nibble::ops::cpu
