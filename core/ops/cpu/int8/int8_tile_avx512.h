#pragma once
// What the two 8-bit kernels of 512-bit registers share. Include only in .cpp files.

#include "nibble/core/ops/cpu/gemm/gemm_avx512.h"
#include "nibble/core/ops/cpu/int8/int8_kernel.h"

namespace nibble::ops::cpu::int8_avx512 {

constexpr int64_t kVectors = avx512::kWidth / avx512::kLanes, kLevels = 127, kBias = kLevels + 1;

/// Adds the dots of row r to its sums; scales are those of the columns.
NIBBLE_AVX512 __attribute__((always_inline)) inline void add_scaled(const Int8Tile& t, int64_t r,
                                                                    const __m512 (&scales)[kVectors],
                                                                    const __m512i (&dots)[kVectors]) {
  const __m512 scale = _mm512_set1_ps(t.x_scales[r]);
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) {
    float* sums = t.sums + r * t.sums_stride + v * avx512::kLanes;
    const __m512 before = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums);
    const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[v]), scales[v]);
    _mm512_storeu_ps(sums, _mm512_fmadd_ps(term, scale, before));
  }
}

NIBBLE_AVX512 __attribute__((always_inline)) inline void load_scales(const Int8Tile& t, __m512 (&scales)[kVectors]) {
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) scales[v] = _mm512_loadu_ps(t.w_scales + v * avx512::kLanes);
}

}  // namespace nibble::ops::cpu::int8_avx512
