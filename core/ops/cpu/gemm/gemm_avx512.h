#pragma once
// Packing and storing with AVX-512, shared by the f32 and the bf16 kernel: both panels are made of groups of 4 bytes
// (one f32 or two bf16), 16 columns to a register and 64 to a strip.

#include <algorithm>
#include <array>
#include <utility>

#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/x86/avx512.h"
#include "nibble/core/tensor/bfloat16.h"

namespace nibble::ops::cpu::avx512 {

using nibble::avx512::low_bits;
using nibble::avx512::narrow;
using nibble::avx512::widen;

constexpr int64_t kLanes = 16, kWidth = 64, kGroupBytes = 4, kStripBytes = kWidth * kGroupBytes;

/// Columns 0..15 of rows of 4-byte groups.
NIBBLE_AVX512 inline void transpose(__m512i rows[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// GemmKernel::pack_transposed for elements of kElementBytes. Asks for the 16 rows behind these, which are packed next:
/// with few rows of A, as in decoding, packing goes at the speed of memory.
template <int64_t kElementBytes>
NIBBLE_AVX512 void pack_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                   std::byte* strip) {
  constexpr int64_t kDepths = 64 / kElementBytes;  // of one register
  for (int64_t k = 0; k < depth; k += kDepths) {
    const uint32_t mask = low_bits(((depth - k) * kElementBytes + 1) / 2);
    __m512i rows[16];
    for (int64_t n = 0; n < 16; ++n) {
      rows[n] = n < columns ? _mm512_maskz_loadu_epi16(mask, from + (n * stride + k) * kElementBytes)
                            : _mm512_setzero_si512();
      _mm_prefetch(reinterpret_cast<const char*>(from + ((16 + n) * stride + k) * kElementBytes), _MM_HINT_T0);
    }
    transpose(rows);
    const int64_t groups = std::min<int64_t>(16, ((depth - k) * kElementBytes + 3) / kGroupBytes);
    for (int64_t g = 0; g < 16; ++g) {
      if (g < groups) _mm512_store_si512(strip + g * kStripBytes, rows[g]);
    }
    strip += 16 * kStripBytes;
  }
}

// Two rows of 32 bf16 become 32 pairs: element 2i of the result is even[i], element 2i + 1 is odd[i].
struct Pairs {
  __m512i low, high;
};

NIBBLE_AVX512 inline Pairs interleave(__m512i even, __m512i odd) {
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 64> result{};
    for (uint16_t i = 0; i < 64; ++i) result[i] = static_cast<uint16_t>(i / 2 + (i % 2) * 32);
    return result;
  }();
  return {_mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder.data()), odd),
          _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder.data() + 32), odd)};
}

// Rows are far apart and little of each is read, so no hardware fetches them ahead.
constexpr int64_t kRowsAhead = 32;

NIBBLE_AVX512 inline void fetch_ahead(const std::byte* from, int64_t stride, bool wide) {
  const std::byte* ahead = from + kRowsAhead * 2 * stride;
  _mm_prefetch(ahead, _MM_HINT_T1);
  _mm_prefetch(ahead + 2 * stride, _MM_HINT_T1);
  if (!wide) return;
  _mm_prefetch(ahead + 64, _MM_HINT_T1);
  _mm_prefetch(ahead + 2 * stride + 64, _MM_HINT_T1);
}

/// The pairs of one step of the depth: of up to 64 columns of two rows, or of one and zeros.
struct RowPairs {
  NIBBLE_AVX512 __attribute__((always_inline))
  RowPairs(const std::byte* from, int64_t stride, int64_t columns, bool two) {
    const std::byte* odd = from + stride * 2;
    fetch_ahead(from, stride, columns > 32);
    const uint32_t first = low_bits(columns), second = low_bits(columns - 32), present = two ? ~0u : 0u;
    const Pairs left =
        interleave(_mm512_maskz_loadu_epi16(first, from), _mm512_maskz_loadu_epi16(first & present, odd));
    const Pairs right =
        interleave(_mm512_maskz_loadu_epi16(second, from + 64), _mm512_maskz_loadu_epi16(second & present, odd + 64));
    groups[0] = left.low;
    groups[1] = left.high;
    groups[2] = right.low;
    groups[3] = right.high;
  }
  __m512i groups[4];
};

/// 48 groups of one step of depth become 8 tiles of 6. A store writes 8 groups; the two too many are overwritten by the
/// tile's next step.
NIBBLE_AVX512 __attribute__((always_inline)) inline void scatter_tiles(__m512i g0, __m512i g1, __m512i g2,
                                                                       std::byte* to, int64_t tile_bytes) {
  const __m512i tiles[8] = {g0,
                            _mm512_alignr_epi32(g1, g0, 6),
                            _mm512_alignr_epi32(g1, g0, 12),
                            _mm512_alignr_epi32(g2, g1, 2),
                            _mm512_alignr_epi32(g2, g1, 8),
                            _mm512_alignr_epi32(g2, g1, 14),
                            _mm512_alignr_epi32(g2, g2, 4),
                            _mm512_alignr_epi32(g2, g2, 10)};
  for (int t = 0; t < 8; ++t) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + t * tile_bytes), _mm512_castsi512_si256(tiles[t]));
  }
}

/// 16 f32 as bf16; by the CPU's instruction for it, which takes subnormal numbers for zero as its products do, or
/// without.
template <bool kInstruction>
NIBBLE_AVX512 __attribute__((always_inline)) inline __m256i narrow_by(__m512 value) {
  if constexpr (kInstruction) {
    return nibble::avx512::narrow_by_instruction(value);
  } else {
    return narrow(value);
  }
}

/// 16 columns of the result from 16 sums.
template <bool kInstruction>
NIBBLE_AVX512 __attribute__((always_inline)) inline void store16(__m512 sums, __mmask16 mask, const TileOutput& output,
                                                                 int64_t index) {
  const __m512 alpha = _mm512_set1_ps(output.alpha);
  if (output.dtype == DType::f32) {
    float* c = reinterpret_cast<float*>(output.c) + index;
    const __m512 before = output.accumulate ? _mm512_maskz_loadu_ps(mask, c) : _mm512_setzero_ps();
    _mm512_mask_storeu_ps(c, mask, _mm512_fmadd_ps(alpha, sums, before));
  } else {
    bf16* c = reinterpret_cast<bf16*>(output.c) + index;
    const __m512 before = output.accumulate ? widen(_mm256_maskz_loadu_epi16(mask, c)) : _mm512_setzero_ps();
    _mm256_mask_storeu_epi16(c, mask, narrow_by<kInstruction>(_mm512_fmadd_ps(alpha, sums, before)));
  }
}

/// GemmKernel::store
template <bool kInstruction>
NIBBLE_AVX512 void store(const float* sums, int64_t rows, int64_t columns, const TileOutput& output) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; n += kLanes) {
      const auto mask = static_cast<__mmask16>(low_bits(columns - n));
      store16<kInstruction>(_mm512_maskz_loadu_ps(mask, sums + m * output.sums_stride + n), mask, output,
                            m * output.c_stride + n);
    }
  }
}

/// The begin of a tile.
template <int64_t R, int64_t V>
NIBBLE_AVX512 __attribute__((always_inline)) inline void zero(__m512 (&sums)[R][V]) {
#pragma GCC unroll 12
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
  }
}

/// The end of a tile: its sums go on to the next part of the depth or, straight from the registers, to the result.
template <bool kInstruction, int64_t R, int64_t V>
NIBBLE_AVX512 __attribute__((always_inline)) inline void finish(__m512 (&sums)[R][V], int64_t columns,
                                                                const TileOutput& output) {
  const auto tail = static_cast<__mmask16>(low_bits(columns - (V - 1) * kLanes));
#pragma GCC unroll 12
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) {
      float* partial_sums = output.sums + r * output.sums_stride + v * kLanes;
      if (!output.first) sums[r][v] = _mm512_add_ps(_mm512_loadu_ps(partial_sums), sums[r][v]);
      if (output.last) {
        store16<kInstruction>(sums[r][v], v + 1 == V ? tail : __mmask16{0xffff}, output,
                              r * output.c_stride + v * kLanes);
      } else {
        _mm512_storeu_ps(partial_sums, sums[r][v]);
      }
    }
  }
}

/// Rows of a tile, in 32 registers with a row of B: 6 x 4 sums, or 12 of one register, hide the latency of a
/// multiply-add (one starts every cycle, or two, and takes 4 to 6).
constexpr int64_t kTileRows = 6, kNarrowRows = 2 * kTileRows;

template <typename Tiles, size_t... i>
constexpr auto narrow_tiles(std::index_sequence<i...>) {
  return std::array{&Tiles::template tile<i + 1, 1>...};
}
template <typename Tiles, size_t... i>
constexpr auto wide_tiles(std::index_sequence<i...>) {
  return std::array{&Tiles::template tile<i / 3 + 1, i % 3 + 2>...};
}

/// GemmKernel::multiply by Tiles::tile<rows, registers of columns>.
template <typename Tiles>
void multiply(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output) {
  static constexpr auto kNarrow = narrow_tiles<Tiles>(std::make_index_sequence<kNarrowRows>());
  static constexpr auto kWide = wide_tiles<Tiles>(std::make_index_sequence<3 * kTileRows>());
  const auto row = static_cast<size_t>(rows - 1), more = static_cast<size_t>((columns - 1) / kLanes);
  (more == 0 ? kNarrow[row] : kWide[row * 3 + more - 1])(input, columns, output);
}

}  // namespace nibble::ops::cpu::avx512
