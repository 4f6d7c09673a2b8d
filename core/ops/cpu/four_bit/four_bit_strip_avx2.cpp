#include "nibble/core/ops/cpu/four_bit/four_bit_strip.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_values_avx2.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kRows = 8, kPart = 32, kWidth = 16;  // rows, elements of one scale, columns of a strip

/// 16 bytes of codes of each row: group i of 4 bytes of the lower half of out[g] are byte 4 g + i of rows 0 to 3, of
/// the upper half of rows 4 to 7. Codes of missing rows are 0.
NIBBLE_AVX2 inline void load_codes(const FourBitStripRows& w, int64_t byte, __m256i (&out)[4]) {
  __m256i rows[4];
  for (int64_t r = 0; r < 4; ++r) {
    __m128i halves[2];
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t row = r + 4 * i;
      const auto* from = reinterpret_cast<const __m128i*>(w.packed + row * w.row_bytes + byte);
      halves[i] = row < w.rows ? _mm_loadu_si128(from) : _mm_setzero_si128();
    }
    rows[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(halves[0]), halves[1], 1);
  }
  const __m256i low[2] = {_mm256_unpacklo_epi8(rows[0], rows[1]), _mm256_unpacklo_epi8(rows[2], rows[3])};
  const __m256i high[2] = {_mm256_unpackhi_epi8(rows[0], rows[1]), _mm256_unpackhi_epi8(rows[2], rows[3])};
  out[0] = _mm256_unpacklo_epi16(low[0], low[1]);
  out[1] = _mm256_unpackhi_epi16(low[0], low[1]);
  out[2] = _mm256_unpacklo_epi16(high[0], high[1]);
  out[3] = _mm256_unpackhi_epi16(high[0], high[1]);
}

/// Numbers of every other depth from `to` on.
template <bool rounded>
NIBBLE_AVX2 inline void store_codes(__m256i codes, const FourBitValuesAvx2& table, __m256 scales, float* to) {
  __m256 values[4];
  table.get<false>(codes, values);
  for (const __m256& value : values) {
    __m256 number = _mm256_mul_ps(value, scales);
    if constexpr (rounded) number = avx2::round_to_bf16(number);
    _mm256_store_ps(to, number);
    to += 2 * kWidth;
  }
}

template <bool rounded>
NIBBLE_AVX2 void fill(const FourBitStripRows& w, std::byte* strip) {
  const FourBitValuesAvx2 table(*w.planes);
  auto* to = reinterpret_cast<float*>(strip);
  for (int64_t part = 0; part < w.depth / kPart; ++part) {
    alignas(32) float scales[kRows] = {};
    for (int64_t r = 0; r < w.rows; ++r) scales[r] = w.scales[r * w.scale_stride + part];
    const __m256 of_rows = _mm256_load_ps(scales);
    __m256i bytes[4];
    load_codes(w, part * kPart / 2, bytes);
    for (const __m256i& some : bytes) {
      store_codes<rounded>(FourBitValuesAvx2::upper(some), table, of_rows, to);
      store_codes<rounded>(FourBitValuesAvx2::lower(some), table, of_rows, to + kWidth);
      to += 8 * kWidth;
    }
  }
}

}  // namespace

void four_bit_strip_avx2(const FourBitStripRows& w, bool rounded, std::byte* strip) {
  (rounded ? fill<true> : fill<false>)(w, strip);
}

}  // namespace nibble::ops::cpu
