#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_avx512.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kPrefetchBytes = 2048;

// The pair of A is broadcast by the instruction itself.
struct Bf16Tiles {
  template <int64_t R, int64_t V>
  NIBBLE_AVX512_BF16 static void tile(const TileInput& input, int64_t columns, const TileOutput& output) {
    __m512 sums[R][V];
    avx512::zero(sums);
    for (const TileInput* part = &input; part != nullptr; part = part->epilogue) {
      const std::byte *a = part->a, *b = part->b;
      const int64_t a_row_bytes = part->a_row_bytes, a_step_bytes = part->a_step_bytes;
      const std::byte* ahead = part->ahead != nullptr ? part->ahead : b + kPrefetchBytes;
      const int64_t ahead_step = part->ahead != nullptr ? R * avx512::kGroupBytes : avx512::kStripBytes;
      for (int64_t s = 0; s < part->steps; ++s, a += a_step_bytes, b += avx512::kStripBytes, ahead += ahead_step) {
        __m512i row[V];
        for (int64_t v = 0; v < V; ++v) {
          row[v] = _mm512_load_si512(b + v * 64);
          _mm_prefetch(ahead + v * 64, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int64_t r = 0; r < R; ++r) {
          int32_t pair;
          std::memcpy(&pair, a + r * a_row_bytes, sizeof pair);
          const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
          for (int64_t v = 0; v < V; ++v) {
            sums[r][v] =
                _mm512_dpbf16_ps(sums[r][v], reinterpret_cast<__m512bh>(row[v]), reinterpret_cast<__m512bh>(x));
          }
        }
      }
    }
    avx512::finish<true>(sums, columns, output);
  }
};

NIBBLE_AVX512_BF16 void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                  std::byte* strip) {
  for (int64_t k = 0; k < depth; k += 2, from += stride * 4, strip += avx512::kStripBytes) {
    const avx512::RowPairs pairs(from, stride, columns, k + 1 < depth);
    for (int64_t v = 0; v < 4; ++v) _mm512_store_si512(strip + v * 64, pairs.groups[v]);
  }
}

NIBBLE_AVX512_BF16 void pack_left_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                             std::byte* tiles, int64_t tile_bytes) {
  for (int64_t k = 0; k < depth; k += 2, from += stride * 4, tiles += avx512::kTileRows * 4) {
    const avx512::RowPairs pairs(from, stride, columns, k + 1 < depth);
    avx512::scatter_tiles(pairs.groups[0], pairs.groups[1], pairs.groups[2], tiles, tile_bytes);
  }
}

// 8 x 2 sums; rows of the wide matrix are interleaved into pairs in registers.
template <int64_t R>
NIBBLE_AVX512_BF16 void thin_tile(int64_t columns, int64_t depth, const std::byte* left, const std::byte* wide,
                                  int64_t stride, float* sums) {
  constexpr int64_t kAheadRows = 128;  // into the second level of the cache, where a call for other columns finds them
  const uint32_t mask = avx512::low_bits(columns);
  __m512 parts[R][2];
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < 2; ++v) parts[r][v] = _mm512_loadu_ps(sums + r * kThinColumns + v * avx512::kLanes);
  }
  for (int64_t k = 0; k < depth; k += 2, left += avx512::kStripBytes, wide += stride * 4) {
    const std::byte* odd = wide + stride * 2;
    _mm_prefetch(wide + kAheadRows * stride * 2, _MM_HINT_T1);
    _mm_prefetch(odd + kAheadRows * stride * 2, _MM_HINT_T1);
    const uint32_t present = k + 1 < depth ? ~0u : 0u;
    const avx512::Pairs row =
        avx512::interleave(_mm512_maskz_loadu_epi16(mask, wide), _mm512_maskz_loadu_epi16(mask & present, odd));
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, left + r * avx512::kGroupBytes, sizeof pair);
      const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      parts[r][0] = _mm512_dpbf16_ps(parts[r][0], reinterpret_cast<__m512bh>(row.low), x);
      parts[r][1] = _mm512_dpbf16_ps(parts[r][1], reinterpret_cast<__m512bh>(row.high), x);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < 2; ++v) _mm512_storeu_ps(sums + r * kThinColumns + v * avx512::kLanes, parts[r][v]);
  }
}

void multiply_thin(int64_t rows, int64_t columns, int64_t depth, const std::byte* left, const std::byte* wide,
                   int64_t stride, float* sums) {
  static constexpr decltype(&thin_tile<1>) kTiles[kThinRows] = {thin_tile<1>, thin_tile<2>, thin_tile<3>, thin_tile<4>,
                                                                thin_tile<5>, thin_tile<6>, thin_tile<7>, thin_tile<8>};
  kTiles[rows - 1](columns, depth, left, wide, stride, sums);
}

template <int64_t M>
NIBBLE_AVX512_BF16 void dots_of(int64_t columns, int64_t depth, const bf16* x, int64_t x_stride, const bf16* w,
                                int64_t w_stride, float* sums) {
  __m512 parts[M][kDotRows];
  avx512::zero(parts);
  const bf16* rows[kDotRows];
  for (int64_t n = 0; n < kDotRows; ++n) rows[n] = w + std::min(n, columns - 1) * w_stride;
  // Weights read in place come from memory: far enough ahead that its latency does not show, and not among the rows at
  // hand; into the second level of the cache because the first has too few buffers for as many lines.
  constexpr int64_t kAhead = 16384, kLine = 64;
  const auto* ahead = reinterpret_cast<const char*>(w) + std::max(kAhead, kDotRows * w_stride * int64_t{sizeof(bf16)});
  for (int64_t k = 0; k < depth; k += 32) {
    for (int64_t n = 0; M == 1 && n < kDotRows; ++n, ahead += kLine) _mm_prefetch(ahead, _MM_HINT_T1);
    const uint32_t mask = avx512::low_bits(depth - k);
    __m512i left[M];
    for (int64_t m = 0; m < M; ++m) left[m] = _mm512_maskz_loadu_epi16(mask, x + m * x_stride + k);
#pragma GCC unroll 4
    for (int64_t n = 0; n < kDotRows; ++n) {
      const __m512i right = _mm512_maskz_loadu_epi16(mask, rows[n] + k);
#pragma GCC unroll 4
      for (int64_t m = 0; m < M; ++m) {
        parts[m][n] =
            _mm512_dpbf16_ps(parts[m][n], reinterpret_cast<__m512bh>(left[m]), reinterpret_cast<__m512bh>(right));
      }
    }
  }
#pragma GCC unroll 4
  for (int64_t m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int64_t n = 0; n < kDotRows; ++n) sums[m * kDotRows + n] = _mm512_reduce_add_ps(parts[m][n]);
  }
}

void dots(int64_t rows, int64_t columns, int64_t depth, const std::byte* x, int64_t x_stride, const std::byte* w,
          int64_t w_stride, float* sums) {
  static constexpr decltype(&dots_of<1>) kDots[] = {dots_of<1>, dots_of<2>, dots_of<3>, dots_of<4>};
  kDots[rows - 1](columns, depth, reinterpret_cast<const bf16*>(x), x_stride, reinterpret_cast<const bf16*>(w),
                  w_stride, sums);
}

}  // namespace

const GemmKernel kGemmAvx512Bf16 = {
    .compute = DType::bf16,
    .rows = avx512::kTileRows,
    .lanes = avx512::kLanes,
    .width = avx512::kWidth,
    .depth_step = 2,
    .depth_block = 2048,  // 2048 x 128 bf16 are 512 KB, see kGemmAvx512
    .panel_columns = 128,
    .narrow_rows = avx512::kNarrowRows,
    .multiply = avx512::multiply<Bf16Tiles>,
    .pack_transposed = avx512::pack_transposed<2>,
    .pack_rows = pack_rows,
    .four_bit = kFourBitStripsAvx512Bf16,
    .pack_left_transposed = pack_left_transposed,
    .dots = dots,
    .multiply_thin = multiply_thin,
    .store = avx512::store<true>,
};

}  // namespace nibble::ops::cpu
