#include <algorithm>

#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_values_avx2.h"

namespace nibble::ops::cpu {

namespace {

/// What does not fill registers.
template <typename Out>
void expand_rest(FourBitRun run, int64_t begin, int64_t count, float absmax, Out* out) {
  if (count == 0) return;
  run.begin = begin;
  run.count = count;
  run.scales = &absmax;
  run.block_size = int64_t{1} << 61;  // the end of the block after it is a number as well
  if constexpr (std::is_same_v<Out, float>) {
    kFourBitExpandBaseline.to_f32(run, out);
  } else {
    kFourBitExpandBaseline.to_bf16(run, out);
  }
}

// What FourBitValuesAvx2 makes of the codes of 32 elements, in order.
NIBBLE_AVX2 inline void store32(const __m256 (&values)[4], float* out) {
  for (int64_t i = 0; i < 4; i += 2, out += 8) {
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(values[i], values[i + 1], 0x20));
    _mm256_storeu_ps(out + 16, _mm256_permute2f128_ps(values[i], values[i + 1], 0x31));
  }
}
NIBBLE_AVX2 inline void store32(const __m256 (&values)[4], bf16* out) {
  __m256i high[4];
  for (int64_t i = 0; i < 4; ++i) {
    high[i] = _mm256_srli_epi32(_mm256_castps_si256(avx2::round_to_bf16(values[i])), 16);
  }
  const __m256i first = _mm256_packus_epi32(high[0], high[1]), second = _mm256_packus_epi32(high[2], high[3]);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(first, second, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(first, second, 0x31));
}

template <bool low_first, typename Out>
NIBBLE_AVX2 void expand_block(const FourBitRun& run, int64_t begin, int64_t count, float absmax, Out* out) {
  const FourBitValuesAvx2 table(*run.planes);
  const __m256 scale = _mm256_set1_ps(absmax);
  const int64_t first = count > 0 ? begin % 2 : 0, whole = (count - first) / 32 * 32;
  expand_rest(run, begin, first, absmax, out);
  const uint8_t* from = run.packed + (begin + first) / 2;
  for (int64_t i = first; i < first + whole; i += 32, from += 16) {
    const __m256i bytes = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m128i upper = _mm256_castsi256_si128(FourBitValuesAvx2::upper(bytes));
    const __m128i lower = _mm256_castsi256_si128(FourBitValuesAvx2::lower(bytes));
    const __m128i even = low_first ? lower : upper, odd = low_first ? upper : lower;
    __m256 values[4];
    table.get<false>(_mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd)), values);
    for (__m256& value : values) value = _mm256_mul_ps(value, scale);
    store32(values, out + i);
  }
  expand_rest(run, begin + first + whole, count - first - whole, absmax, out + first + whole);
}

template <bool low_first, typename Out>
NIBBLE_AVX2 void expand_blocks(const FourBitRun& run, Out* out) {
  const int64_t end = run.begin + run.count;
  const float* scale = run.scales;
  int64_t block_end = (run.begin / run.block_size + 1) * run.block_size;
  for (int64_t begin = run.begin; begin < end; ++scale, block_end += run.block_size) {
    const int64_t stop = std::min(end, block_end);
    expand_block<low_first>(run, begin, stop - begin, *scale, out + (begin - run.begin));
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
