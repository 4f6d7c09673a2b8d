#pragma once
// AVX-512 in software: the kernels for it, compiled with this file before their own includes, run on any CPU with AVX2.
// Their intrinsics become SIMDe's portable functions or, where SIMDe 0.7.4 has none, those below, which do as the Intel
// 64 and IA-32 Architectures Software Developer's Manual, volume 2, says.

#include <immintrin.h>
#include <simde/x86/avx512.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Instead of what core/ops/cpu/x86/avx512.h says.
#define NIBBLE_AVX512
#define NIBBLE_AVX512_BF16
#define NIBBLE_AVX512_VBMI
#define NIBBLE_AVX512_VNNI

namespace nibble::avx512 {

template <typename T, typename V>
using Lanes = std::array<T, sizeof(V) / sizeof(T)>;

template <typename T, typename V>
Lanes<T, V> lanes(V value) {
  return std::bit_cast<Lanes<T, V>>(value);
}

/// Lanes of T whose bit in mask is set, from memory; the others are 0 and their memory is not read.
template <typename V, typename T, typename Mask>
V load_some(Mask mask, const void* from) {
  Lanes<T, V> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    if ((mask >> i & 1) != 0) std::memcpy(&values[i], static_cast<const T*>(from) + i, sizeof(T));
  }
  return std::bit_cast<V>(values);
}

template <typename T, typename Mask, typename V>
void store_some(void* to, Mask mask, V value) {
  const auto values = lanes<T>(value);
  for (size_t i = 0; i < values.size(); ++i) {
    if ((mask >> i & 1) != 0) std::memcpy(static_cast<T*>(to) + i, &values[i], sizeof(T));
  }
}

/// Lanes of From as To: as many as both vectors have.
template <typename V, typename To, typename From, typename W>
V convert(W value) {
  const auto from = lanes<From>(value);
  Lanes<To, V> to{};
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) to[i] = static_cast<To>(from[i]);
  return std::bit_cast<V>(to);
}

inline __m512i align_right(__m512i high, __m512i low, size_t count) {
  const auto above = lanes<int32_t>(high), below = lanes<int32_t>(low);
  Lanes<int32_t, __m512i> result;
  for (size_t i = 0; i < 16; ++i) result[i] = i + count < 16 ? below[i + count] : above[i + count - 16];
  return std::bit_cast<__m512i>(result);
}

/// In the order in which GCC sums: both halves, until one lane is left.
inline float sum(__m512 value) {
  auto values = lanes<float>(value);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

inline uint32_t greatest(__m512i value) {
  const auto values = lanes<uint32_t>(value);
  return *std::max_element(values.begin(), values.end());
}

inline __m512i round_to_int32(__m512 value) {
  const auto from = lanes<float>(value);
  Lanes<int32_t, __m512> to;
  for (size_t i = 0; i < to.size(); ++i) {
    const bool fits = std::fabs(from[i]) < 0x1p31f;
    to[i] = fits ? static_cast<int32_t>(std::nearbyint(from[i])) : std::numeric_limits<int32_t>::min();
  }
  return std::bit_cast<__m512i>(to);
}

inline __m512 widen_f16(__m256i halves) {
  const auto of = lanes<__m128i>(halves);
  return std::bit_cast<__m512>(std::array{_mm256_cvtph_ps(of[0]), _mm256_cvtph_ps(of[1])});
}

/// Instructions for bf16 take subnormal numbers for zero.
inline float without_subnormals(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

inline uint16_t narrow_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(without_subnormals(value));
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float widen_bf16(uint16_t bits) { return without_subnormals(std::bit_cast<float>(uint32_t{bits} << 16)); }

inline __m256i narrow_by_instruction(__m512 value) {
  const auto from = lanes<float>(value);
  Lanes<uint16_t, __m256i> to;
  for (size_t i = 0; i < to.size(); ++i) to[i] = narrow_to_bf16(from[i]);
  return std::bit_cast<__m256i>(to);
}

inline __m512i narrow_two(__m512 high, __m512 low) {
  return std::bit_cast<__m512i>(std::array{narrow_by_instruction(low), narrow_by_instruction(high)});
}

/// sums + the products of the pairs' second elements, + those of the first ones.
inline __m512 add_bf16_products(__m512 sums, __m512i pairs, __m512i others) {
  auto result = lanes<float>(sums);
  const auto a = lanes<uint16_t>(pairs), b = lanes<uint16_t>(others);
  for (size_t i = 0; i < result.size(); ++i) {
    float sum = without_subnormals(result[i]);
    for (const size_t at : {2 * i + 1, 2 * i}) {
      sum = without_subnormals(std::fma(widen_bf16(a[at]), widen_bf16(b[at]), sum));
    }
    result[i] = sum;
  }
  return std::bit_cast<__m512>(result);
}

/// sums += products of fours of bytes, of which the others are signed.
inline void add_dots(__m512i& sums, __m512i bytes, __m512i others) {
  auto result = lanes<int32_t>(sums);
  const auto a = lanes<uint8_t>(bytes);
  const auto b = lanes<int8_t>(others);
  for (size_t i = 0; i < a.size(); ++i) result[i / 4] += a[i] * b[i];
  sums = std::bit_cast<__m512i>(result);
}

}  // namespace nibble::avx512

#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, from) nibble::avx512::load_some<__m512, float>(mask, from)
#undef _mm512_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi32(mask, from) nibble::avx512::load_some<__m512i, int32_t>(mask, from)
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16(mask, from) nibble::avx512::load_some<__m512i, int16_t>(mask, from)
#undef _mm512_maskz_loadu_epi8
#define _mm512_maskz_loadu_epi8(mask, from) nibble::avx512::load_some<__m512i, int8_t>(mask, from)
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16(mask, from) nibble::avx512::load_some<__m256i, int16_t>(mask, from)
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8(mask, from) nibble::avx512::load_some<__m128i, int8_t>(mask, from)
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(to, mask, value) nibble::avx512::store_some<float>(to, mask, value)
#undef _mm512_mask_storeu_epi32
#define _mm512_mask_storeu_epi32(to, mask, value) nibble::avx512::store_some<int32_t>(to, mask, value)
#undef _mm512_mask_storeu_epi16
#define _mm512_mask_storeu_epi16(to, mask, value) nibble::avx512::store_some<int16_t>(to, mask, value)
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16(to, mask, value) nibble::avx512::store_some<int16_t>(to, mask, value)
#undef _mm_mask_storeu_epi8
#define _mm_mask_storeu_epi8(to, mask, value) nibble::avx512::store_some<int8_t>(to, mask, value)
#undef _mm512_cvtepu8_epi16
#define _mm512_cvtepu8_epi16(value) nibble::avx512::convert<__m512i, uint16_t, uint8_t>(value)
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(value) nibble::avx512::convert<__m512i, uint32_t, uint8_t>(value)
#undef _mm512_cvtepu8_epi64
#define _mm512_cvtepu8_epi64(value) nibble::avx512::convert<__m512i, uint64_t, uint8_t>(value)
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(value) nibble::avx512::convert<__m512i, uint32_t, uint16_t>(value)
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8(value) nibble::avx512::convert<__m128i, uint8_t, uint32_t>(value)
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16(value) nibble::avx512::convert<__m256i, uint16_t, uint32_t>(value)
#undef _mm512_cvtepi64_epi8
#define _mm512_cvtepi64_epi8(value) nibble::avx512::convert<__m128i, uint8_t, uint64_t>(value)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(value) nibble::avx512::convert<__m512, float, int32_t>(value)
#undef _mm512_alignr_epi32
#define _mm512_alignr_epi32 nibble::avx512::align_right
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps nibble::avx512::sum
#undef _mm512_reduce_max_epu32
#define _mm512_reduce_max_epu32 nibble::avx512::greatest
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 nibble::avx512::round_to_int32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps nibble::avx512::widen_f16
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh nibble::avx512::narrow_two
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps(sums, a, b) nibble::avx512::add_bf16_products(sums, (__m512i)(a), (__m512i)(b))
#undef _mm512_add_epi32
#define _mm512_add_epi32 simde_mm512_add_epi32
#undef _mm512_add_ps
#define _mm512_add_ps simde_mm512_add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 simde_mm512_and_si512
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 simde_mm512_broadcast_i32x4
#undef _mm512_broadcast_i64x4
#define _mm512_broadcast_i64x4 simde_mm512_broadcast_i64x4
#undef _mm512_castps_si512
#define _mm512_castps_si512 simde_mm512_castps_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 simde_mm512_castsi512_si256
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask simde_mm512_cmp_ps_mask
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 simde_mm512_extracti64x4_epi64
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps simde_mm512_fmadd_ps
#undef _mm512_load_ps
#define _mm512_load_ps simde_mm512_load_ps
#undef _mm512_load_si512
#define _mm512_load_si512 simde_mm512_load_si512
#undef _mm512_loadu_ps
#define _mm512_loadu_ps simde_mm512_loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16
#undef _mm512_mask_add_epi32
#define _mm512_mask_add_epi32 simde_mm512_mask_add_epi32
#undef _mm512_mask_blend_epi8
#define _mm512_mask_blend_epi8 simde_mm512_mask_blend_epi8
#undef _mm512_mask_or_epi32
#define _mm512_mask_or_epi32 simde_mm512_mask_or_epi32
#undef _mm512_max_epu32
#define _mm512_max_epu32 simde_mm512_max_epu32
#undef _mm512_movepi8_mask
#define _mm512_movepi8_mask simde_mm512_movepi8_mask
#undef _mm512_mul_ps
#define _mm512_mul_ps simde_mm512_mul_ps
#undef _mm512_or_si512
#define _mm512_or_si512 simde_mm512_or_si512
#undef _mm512_permutex2var_epi16
#define _mm512_permutex2var_epi16 simde_mm512_permutex2var_epi16
#undef _mm512_permutex2var_epi32
#define _mm512_permutex2var_epi32 simde_mm512_permutex2var_epi32
#undef _mm512_permutex2var_epi8
#define _mm512_permutex2var_epi8 simde_mm512_permutex2var_epi8
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16 simde_mm512_permutexvar_epi16
#undef _mm512_permutexvar_epi32
#define _mm512_permutexvar_epi32 simde_mm512_permutexvar_epi32
#undef _mm512_permutexvar_ps
#define _mm512_permutexvar_ps simde_mm512_permutexvar_ps
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 simde_mm512_set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 simde_mm512_set1_epi8
#undef _mm512_set1_ps
#define _mm512_set1_ps simde_mm512_set1_ps
#undef _mm512_set_epi32
#define _mm512_set_epi32 simde_mm512_set_epi32
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 simde_mm512_setr_epi32
#undef _mm512_setzero_ps
#define _mm512_setzero_ps simde_mm512_setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 simde_mm512_setzero_si512
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 simde_mm512_shuffle_epi8
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 simde_mm512_shuffle_i32x4
#undef _mm512_shuffle_i64x2
#define _mm512_shuffle_i64x2 simde_mm512_shuffle_i64x2
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 simde_mm512_slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 simde_mm512_slli_epi32
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 simde_mm512_slli_epi64
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 simde_mm512_srai_epi16
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 simde_mm512_srli_epi16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 simde_mm512_srli_epi32
#undef _mm512_srli_epi64
#define _mm512_srli_epi64 simde_mm512_srli_epi64
#undef _mm512_store_si512
#define _mm512_store_si512 simde_mm512_store_si512
#undef _mm512_storeu_ps
#define _mm512_storeu_ps simde_mm512_storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 simde_mm512_storeu_si512
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 simde_mm512_sub_epi32
#undef _mm512_unpackhi_epi16
#define _mm512_unpackhi_epi16 simde_mm512_unpackhi_epi16
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 simde_mm512_unpackhi_epi32
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 simde_mm512_unpackhi_epi64
#undef _mm512_unpackhi_epi8
#define _mm512_unpackhi_epi8 simde_mm512_unpackhi_epi8
#undef _mm512_unpacklo_epi16
#define _mm512_unpacklo_epi16 simde_mm512_unpacklo_epi16
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 simde_mm512_unpacklo_epi32
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 simde_mm512_unpacklo_epi64
#undef _mm512_unpacklo_epi8
#define _mm512_unpacklo_epi8 simde_mm512_unpacklo_epi8
