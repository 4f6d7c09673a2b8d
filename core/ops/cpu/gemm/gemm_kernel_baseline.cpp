#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packing.h"

namespace nibble::ops::cpu {

namespace {

// 16 registers of 4 floats: 4 x 8 sums take 8, two hold a row of B, one the element of A.
constexpr int64_t kRows = 4, kLanes = 4, kWidth = 8;
using Floats = float __attribute__((vector_size(16)));

template <int64_t R>
void tile(const TileInput& input, float* c, int64_t c_stride, int64_t columns, bool add) {
  Floats sums[R][2] = {};
  for (const TileInput* part = &input; part != nullptr; part = part->epilogue) {
    const std::byte* a = part->a;
    const auto* b = reinterpret_cast<const float*>(part->b);
    for (int64_t k = 0; k < part->steps; ++k, a += part->a_step_bytes, b += kWidth) {
      Floats b0, b1;
      std::memcpy(&b0, b, sizeof b0);
      std::memcpy(&b1, b + kLanes, sizeof b1);
      for (int64_t r = 0; r < R; ++r) {
        float x;
        std::memcpy(&x, a + r * part->a_row_bytes, sizeof x);
        sums[r][0] += x * b0;
        sums[r][1] += x * b1;
      }
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < 2 && v * kLanes < columns; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      Floats before = {};
      if (add) std::memcpy(&before, to, sizeof before);
      before += sums[r][v];
      std::memcpy(to, &before, sizeof before);
    }
  }
}

void multiply(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output) {
  constexpr decltype(&tile<1>) kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>};
  kTiles[rows - 1](input, output.sums, output.sums_stride, columns, !output.first);
  if (output.last) store_sums(output.sums, rows, columns, output);
}

}  // namespace

// As AVX2.
const GemmKernel kGemmBaseline = plain_kernel<float, kRows, kLanes, kWidth, 1>(256, 192, multiply);

}  // namespace nibble::ops::cpu
