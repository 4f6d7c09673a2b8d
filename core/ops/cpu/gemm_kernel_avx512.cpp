#include <cstring>

#include "nibble/core/ops/cpu/gemm_avx512.h"
#include "nibble/core/ops/cpu/gemm_kernel.h"

namespace nibble::ops::cpu {

namespace {

// The tile of the bf16 kernel with one f32 where that has two bf16.
constexpr int64_t kRows = 6;

template <int64_t R, int64_t V>
NIBBLE_AVX512 void tile(int64_t steps, const std::byte* a, int64_t a_row_bytes, int64_t a_step_bytes,
                        const std::byte* b, float* c, int64_t c_stride, bool add) {
  __m512 sums[R][V];
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (int64_t s = 0; s < steps; ++s, a += a_step_bytes, b += avx512::kStripBytes) {
    __m512 row[V];
    for (int64_t v = 0; v < V; ++v) row[v] = _mm512_load_ps(reinterpret_cast<const float*>(b) + v * avx512::kLanes);
    for (int64_t r = 0; r < R; ++r) {
      float element;
      std::memcpy(&element, a + r * a_row_bytes, sizeof element);
      const __m512 x = _mm512_set1_ps(element);
      for (int64_t v = 0; v < V; ++v) sums[r][v] = _mm512_fmadd_ps(x, row[v], sums[r][v]);
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < V; ++v) {
      float* to = c + r * c_stride + v * avx512::kLanes;
      _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sums[r][v]) : sums[r][v]);
    }
  }
}

void multiply(int64_t rows, int64_t columns, int64_t steps, const std::byte* a, int64_t a_row_bytes,
              int64_t a_step_bytes, const std::byte* b, float* c, int64_t c_stride, bool add) {
  using Tile = decltype(&tile<1, 1>);
  constexpr Tile kTiles[kRows][4] = {
      {tile<1, 1>, tile<1, 2>, tile<1, 3>, tile<1, 4>}, {tile<2, 1>, tile<2, 2>, tile<2, 3>, tile<2, 4>},
      {tile<3, 1>, tile<3, 2>, tile<3, 3>, tile<3, 4>}, {tile<4, 1>, tile<4, 2>, tile<4, 3>, tile<4, 4>},
      {tile<5, 1>, tile<5, 2>, tile<5, 3>, tile<5, 4>}, {tile<6, 1>, tile<6, 2>, tile<6, 3>, tile<6, 4>}};
  kTiles[rows - 1][(columns - 1) / avx512::kLanes](steps, a, a_row_bytes, a_step_bytes, b, c, c_stride, add);
}

NIBBLE_AVX512 void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  for (int64_t k = 0; k < depth; ++k, from += stride * 4, strip += avx512::kStripBytes) {
    for (int64_t n = 0; n < avx512::kWidth; n += avx512::kLanes) {
      const auto mask = static_cast<__mmask16>(avx512::low_bits(columns - n));
      _mm512_store_si512(strip + n * 4, _mm512_maskz_loadu_epi32(mask, from + n * 4));
    }
  }
}

}  // namespace

const GemmKernel kGemmAvx512 = {
    .compute = DType::f32,
    .rows = kRows,
    .lanes = avx512::kLanes,
    .width = avx512::kWidth,
    .depth_step = 1,
    .depth_block = 512,
    .panel_columns = 256,
    .multiply = multiply,
    .pack_transposed = avx512::pack_transposed<4>,
    .pack_rows = pack_rows,
    .store_f32 = avx512::store_f32,
    .store_bf16 = avx512::store_bf16,
};

}  // namespace nibble::ops::cpu
