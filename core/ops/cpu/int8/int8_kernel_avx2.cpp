#include "nibble/core/ops/cpu/int8/int8_tile_avx2.h"

namespace nibble::ops::cpu {

namespace {

/// Pairs are summed in 16 bits, which saturate: 2 * 127 * 127 fit, so weights have 63 levels, 1 ... 127 with the bias.
/// The last sum as assembly: of the intrinsic GCC 12 copies every sum to another register, and one to memory.
struct Pairs {
  static constexpr int64_t kLevels = 63;
  NIBBLE_AVX2 static void add(__m256i& sums, __m256i w, __m256i x) {
    const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
    asm("vpaddd %1, %0, %0" : "+x"(sums) : "x"(fours));
  }
};

}  // namespace

// 16 registers: 4 x 2 sums, two of W, one element of x, the ones, two terms under way. 1024 x 128 bytes are half of the
// 256 KB of the CPUs that end at AVX2.
const Int8Kernel kInt8Avx2 = int8_avx2::kernel<Pairs, 4>(1024);

}  // namespace nibble::ops::cpu
