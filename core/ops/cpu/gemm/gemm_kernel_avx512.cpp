#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_avx512.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"

namespace nibble::ops::cpu {

namespace {

// The tile of the bf16 kernel with one f32 where that has two bf16.
struct F32Tiles {
  template <int64_t R, int64_t V>
  NIBBLE_AVX512 static void tile(const TileInput& input, int64_t columns, const TileOutput& output) {
    __m512 sums[R][V];
    avx512::zero(sums);
    for (const TileInput* part = &input; part != nullptr; part = part->epilogue) {
      const std::byte *a = part->a, *b = part->b;
      const int64_t a_row_bytes = part->a_row_bytes, a_step_bytes = part->a_step_bytes;
      for (int64_t s = 0; s < part->steps; ++s, a += a_step_bytes, b += avx512::kStripBytes) {
        __m512 row[V];
        for (int64_t v = 0; v < V; ++v) row[v] = _mm512_load_ps(reinterpret_cast<const float*>(b) + v * avx512::kLanes);
#pragma GCC unroll 12
        for (int64_t r = 0; r < R; ++r) {
          float element;
          std::memcpy(&element, a + r * a_row_bytes, sizeof element);
          const __m512 x = _mm512_set1_ps(element);
#pragma GCC unroll 4
          for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm512_fmadd_ps(x, row[v], sums[r][v]);
        }
      }
    }
    avx512::finish<false>(sums, columns, output);
  }
};

NIBBLE_AVX512 void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  for (int64_t k = 0; k < depth; ++k, from += stride * 4, strip += avx512::kStripBytes) {
    for (int64_t n = 0; n < avx512::kWidth; n += avx512::kLanes) {
      const auto mask = static_cast<__mmask16>(avx512::low_bits(columns - n));
      _mm512_store_si512(strip + n * 4, _mm512_maskz_loadu_epi32(mask, from + n * 4));
    }
  }
}

NIBBLE_AVX512 void pack_left_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth,
                                        std::byte* tiles, int64_t tile_bytes) {
  __mmask16 masks[3];
  for (int i = 0; i < 3; ++i) masks[i] = static_cast<__mmask16>(avx512::low_bits(columns - i * 16));
  for (int64_t k = 0; k < depth; ++k, from += stride * 4, tiles += avx512::kTileRows * 4) {
    avx512::scatter_tiles(_mm512_maskz_loadu_epi32(masks[0], from), _mm512_maskz_loadu_epi32(masks[1], from + 64),
                          _mm512_maskz_loadu_epi32(masks[2], from + 128), tiles, tile_bytes);
  }
}

template <int64_t M>
NIBBLE_AVX512 void dots_of(int64_t columns, int64_t depth, const float* x, int64_t x_stride, const float* w,
                           int64_t w_stride, float* sums) {
  __m512 parts[M][kDotRows];
  avx512::zero(parts);
  const float* rows[kDotRows];
  for (int64_t n = 0; n < kDotRows; ++n) rows[n] = w + std::min(n, columns - 1) * w_stride;
  for (int64_t k = 0; k < depth; k += 16) {
    const auto mask = static_cast<__mmask16>(avx512::low_bits(depth - k));
    __m512 left[M];
    for (int64_t m = 0; m < M; ++m) left[m] = _mm512_maskz_loadu_ps(mask, x + m * x_stride + k);
#pragma GCC unroll 4
    for (int64_t n = 0; n < kDotRows; ++n) {
      const __m512 right = _mm512_maskz_loadu_ps(mask, rows[n] + k);
#pragma GCC unroll 4
      for (int64_t m = 0; m < M; ++m) parts[m][n] = _mm512_fmadd_ps(left[m], right, parts[m][n]);
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
  constexpr decltype(&dots_of<1>) kDots[] = {dots_of<1>, dots_of<2>, dots_of<3>, dots_of<4>};
  kDots[rows - 1](columns, depth, reinterpret_cast<const float*>(x), x_stride, reinterpret_cast<const float*>(w),
                  w_stride, sums);
}

}  // namespace

const GemmKernel kGemmAvx512 = {
    .compute = DType::f32,
    .rows = avx512::kTileRows,
    .lanes = avx512::kLanes,
    .width = avx512::kWidth,
    .depth_step = 1,
    .depth_block = 512,  // 512 x 256 f32 are 512 KB: half of the 1 MB of the smallest second level beside AVX-512
    .panel_columns = 256,
    .narrow_rows = avx512::kNarrowRows,
    .multiply = avx512::multiply<F32Tiles>,
    .pack_transposed = avx512::pack_transposed<4>,
    .pack_rows = pack_rows,
    .pack_left_transposed = pack_left_transposed,
    .dots = dots,
    .store = avx512::store<false>,
};

}  // namespace nibble::ops::cpu
