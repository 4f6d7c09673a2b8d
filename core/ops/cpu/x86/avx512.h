#pragma once
// Small pieces for functions compiled for AVX-512 and chosen at run time (isa()). Include only in .cpp files.

#include <immintrin.h>

#include <cstdint>

// GCC 12 takes the "undefined" operands of its own intrinsics for variables (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// tests/amx has all of this in software.
#ifndef NIBBLE_AVX512

/// Marks a function of level Isa::avx512, or Isa::avx512_bf16 and above.
#define NIBBLE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define NIBBLE_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx512bf16")))
/// One for CPUs that have these besides.
#define NIBBLE_AVX512_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx512bf16,avx512vbmi")))
#define NIBBLE_AVX512_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx512vnni")))

namespace nibble::avx512 {

/// vcvtneps2bf16. As assembly, so that kernels of both levels can share what calls it.
NIBBLE_AVX512 __attribute__((always_inline)) inline __m256i narrow_by_instruction(__m512 value) {
  __m256i narrowed;
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrowed) : "v"(value));
  return narrowed;
}

/// vpdpbusd. As assembly: of the intrinsic GCC 12 copies every sum to another register and half of them to memory.
NIBBLE_AVX512_VNNI __attribute__((always_inline)) inline void add_dots(__m512i& sums, __m512i bytes, __m512i others) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(bytes), "v"(others));
}

}  // namespace nibble::avx512

#endif

namespace nibble::avx512 {

/// The lowest `count` bits set; all for 32 and more, none below 1.
inline uint32_t low_bits(int64_t count) { return count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1; }

/// 16 bf16 as f32.
NIBBLE_AVX512 inline __m512 widen(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// 16 f32 as bf16, to nearest even; NaN stays NaN. Unlike the instruction for it, keeps subnormal numbers.
NIBBLE_AVX512 inline __m256i narrow(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

}  // namespace nibble::avx512
