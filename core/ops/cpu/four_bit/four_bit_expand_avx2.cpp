#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"

#define NIBBLE_AVX2 __attribute__((target("avx2")))

namespace nibble::ops::cpu {

namespace {

// A block that never ends: the rest of one.
constexpr int64_t kWholeRun = int64_t{1} << 61;  // the end of the block after it is a number as well

template <bool low_first>
NIBBLE_AVX2 void expand_block(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax,
                              float* out) {
  constexpr int kEven = low_first ? 0 : 4, kOdd = 4 - kEven;  // where in a byte
  const __m256 scale = _mm256_set1_ps(absmax);
  const __m256 low = _mm256_mul_ps(_mm256_loadu_ps(table), scale);
  const __m256 high = _mm256_mul_ps(_mm256_loadu_ps(table + 8), scale);
  const int64_t first = count > 0 ? begin % 2 : 0;
  const int64_t whole = (count - first) / 8 * 8;
  if (first != 0) out[0] = table[(packed[begin / 2] >> kOdd) & 15] * absmax;
  const uint8_t* bytes = packed + (begin + first) / 2;
  for (int64_t i = first; i < first + whole; i += 8, bytes += 4) {
    int32_t codes;
    std::memcpy(&codes, bytes, sizeof codes);
    const __m256i byte = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(codes));
    const __m256i index = _mm256_or_si256(_mm256_srli_epi64(byte, kEven), _mm256_slli_epi64(byte, 32 - kOdd));
    // Three bits choose in a half of the table, the fourth, moved to the sign, between the halves.
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    _mm256_storeu_ps(
        out + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), upper));
  }
  const FourBitRun rest = {packed, begin + first + whole, count - first - whole, table, &absmax, kWholeRun, low_first};
  kFourBitExpandBaseline.to_f32(rest, out + first + whole);
}

template <bool low_first>
NIBBLE_AVX2 void expand_block(const uint8_t* packed, int64_t begin, int64_t count, const float* table, float absmax,
                              bf16* out) {
  constexpr int kEven = low_first ? 0 : 4, kOdd = 4 - kEven;
  alignas(16) uint8_t halves[2][16];
  for (int code = 0; code < 16; ++code) {
    const uint16_t bits = bf16(table[code] * absmax).bits;
    halves[0][code] = static_cast<uint8_t>(bits);
    halves[1][code] = static_cast<uint8_t>(bits >> 8);
  }
  const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i*>(halves[0]));
  const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i*>(halves[1]));
  const __m128i mask = _mm_set1_epi8(15);
  const int64_t first = count > 0 ? begin % 2 : 0;
  const int64_t whole = (count - first) / 16 * 16;
  if (first != 0) out[0] = bf16(table[(packed[begin / 2] >> kOdd) & 15] * absmax);
  const uint8_t* bytes = packed + (begin + first) / 2;
  for (int64_t i = first; i < first + whole; i += 16, bytes += 8) {
    const __m128i byte = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    const __m128i even = _mm_and_si128(_mm_srli_epi16(byte, kEven), mask);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(byte, kOdd), mask);
    const __m128i index = _mm_unpacklo_epi8(even, odd);
    const __m128i l = _mm_shuffle_epi8(low, index), h = _mm_shuffle_epi8(high, index);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm_unpacklo_epi8(l, h));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + 8), _mm_unpackhi_epi8(l, h));
  }
  const FourBitRun rest = {packed, begin + first + whole, count - first - whole, table, &absmax, kWholeRun, low_first};
  kFourBitExpandBaseline.to_bf16(rest, out + first + whole);
}

template <bool low_first, typename Out>
NIBBLE_AVX2 void expand_blocks(const FourBitRun& run, Out* out) {
  const int64_t end = run.begin + run.count;
  const float* scale = run.scales;
  int64_t block_end = (run.begin / run.block_size + 1) * run.block_size;
  for (int64_t begin = run.begin; begin < end; ++scale, block_end += run.block_size) {
    const int64_t stop = std::min(end, block_end);
    expand_block<low_first>(run.packed, begin, stop - begin, run.table, *scale, out + (begin - run.begin));
    begin = stop;
  }
}

template <typename Out>
void expand(const FourBitRun& run, Out* out) {
  (run.low_first ? expand_blocks<true, Out> : expand_blocks<false, Out>)(run, out);
}

}  // namespace

const FourBitExpander kFourBitExpandAvx2 = {expand<float>, expand<bf16>};

}  // namespace nibble::ops::cpu
