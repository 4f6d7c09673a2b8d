#include "nibble/core/ops/cpu/int8/int8_tile_avx2.h"

namespace nibble::ops::cpu {

namespace {

/// Pairs are summed in 16 bits, which saturate: 2 * 127 * 127 fit, so weights have 63 levels, 1 ... 127 with the bias.
struct Pairs {
  static constexpr int64_t kLevels = 63;
  NIBBLE_AVX2 static void add(__m256i& sums, __m256i w, __m256i x) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
  }
};

}  // namespace

// 16 registers: 4 x 2 sums, two of W, one element of x, the ones, two terms under way. 1024 x 128 bytes are half of the
// 256 KB of the CPUs that end at AVX2.
const Int8Kernel kInt8Avx2 = int8_avx2::kernel<Pairs, 4>(1024);

}  // namespace nibble::ops::cpu
