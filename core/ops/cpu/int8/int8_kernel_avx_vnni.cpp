#include "nibble/core/ops/cpu/int8/int8_tile_avx2.h"

namespace nibble::ops::cpu {

namespace {

/// AVX-VNNI's own encoding, which CPUs without AVX-512 have; as assembly, see the kernel for those with.
struct Fours {
  static constexpr int64_t kLevels = 127;
  NIBBLE_AVX2 static void add(__m256i& sums, __m256i w, __m256i x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(w), "x"(x));
  }
};

}  // namespace

// 16 registers: 6 x 2 sums, two of W, one element of x. 4096 x 128 bytes are 512 KB of the 1.25 MB and more of the CPUs
// that have it.
const Int8Kernel kInt8AvxVnni = int8_avx2::kernel<Fours, 6>(4096);

}  // namespace nibble::ops::cpu
