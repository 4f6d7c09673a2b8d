#pragma once
// What the two 8-bit kernels of 512-bit registers share. Include only in .cpp files.

#include "nibble/core/ops/cpu/gemm/gemm_avx512.h"
#include "nibble/core/ops/cpu/int8/int8_kernel.h"

namespace nibble::ops::cpu::int8_avx512 {

constexpr int64_t kVectors = avx512::kWidth / avx512::kLanes, kLevels = 127, kBias = kLevels + 1;

/// Adds the dots of row r to its sums.
NIBBLE_AVX512 __attribute__((always_inline)) inline void add_scaled(const Int8Tile& t, int64_t r,
                                                                    const __m512i (&dots)[kVectors]) {
  const __mmask16 kept = t.first ? 0 : 0xffff;
  const float* scales = t.w_scales;
  float* sums = t.sums + r * t.sums_stride;
  const __m512 scale = _mm512_set1_ps(t.x_scales[r]);
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v, sums += avx512::kLanes, scales += avx512::kLanes) {
    const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[v]), _mm512_loadu_ps(scales));
    _mm512_storeu_ps(sums, _mm512_fmadd_ps(term, scale, _mm512_maskz_loadu_ps(kept, sums)));
  }
}

}  // namespace nibble::ops::cpu::int8_avx512
