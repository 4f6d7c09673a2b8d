#include <arm_neon.h>

#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packing.h"

namespace nibble::ops::cpu {

namespace {

// 32 registers: 6 x 4 sums hide the latency of the multiply-add (4 cycles, up to 4 a cycle), four hold a row of B, one
// the element of A.
constexpr int64_t kRows = 6, kLanes = 4, kVectors = 4, kWidth = kLanes * kVectors;

template <int64_t R, int64_t V>
void tile(const TileInput& input, float* c, int64_t c_stride, bool add) {
  float32x4_t sums[R][V];
  for (auto& row : sums) {
    for (auto& sum : row) sum = vdupq_n_f32(0);
  }
  for (const TileInput* part = &input; part != nullptr; part = part->epilogue) {
    const std::byte* a = part->a;
    const auto* b = reinterpret_cast<const float*>(part->b);
    for (int64_t s = 0; s < part->steps; ++s, a += part->a_step_bytes, b += kWidth) {
      float32x4_t row[V];
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v) row[v] = vld1q_f32(b + v * kLanes);
#pragma GCC unroll 6
      for (int64_t r = 0; r < R; ++r) {
        float element;
        std::memcpy(&element, a + r * part->a_row_bytes, sizeof element);
#pragma GCC unroll 4
        for (int64_t v = 0; v < V; ++v) sums[r][v] = vfmaq_n_f32(sums[r][v], row[v], element);
      }
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < V; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), sums[r][v]) : sums[r][v]);
    }
  }
}

void multiply(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output) {
  using Tile = decltype(&tile<1, 1>);
  static constexpr Tile kTiles[kRows][kVectors] = {
      {tile<1, 1>, tile<1, 2>, tile<1, 3>, tile<1, 4>}, {tile<2, 1>, tile<2, 2>, tile<2, 3>, tile<2, 4>},
      {tile<3, 1>, tile<3, 2>, tile<3, 3>, tile<3, 4>}, {tile<4, 1>, tile<4, 2>, tile<4, 3>, tile<4, 4>},
      {tile<5, 1>, tile<5, 2>, tile<5, 3>, tile<5, 4>}, {tile<6, 1>, tile<6, 2>, tile<6, 3>, tile<6, 4>}};
  kTiles[rows - 1][(columns - 1) / kLanes](input, output.sums, output.sums_stride, !output.first);
  if (output.last) store_sums(output.sums, rows, columns, output);
}

}  // namespace

// 256 x 192 f32 are 192 KB of the 256 KB and more of a core's second cache level.
const GemmKernel kGemmNeon = plain_kernel<float, kRows, kLanes, kWidth, 1>(256, 192, multiply);

}  // namespace nibble::ops::cpu
