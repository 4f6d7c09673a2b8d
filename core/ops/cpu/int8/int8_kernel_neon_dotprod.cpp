#include "nibble/core/ops/cpu/int8/int8_tile_neon.h"

#define NIBBLE_NEON_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))

namespace nibble::ops::cpu {

namespace {

using namespace int8_neon;

// 32 registers: 6 x 4 sums, four of W, one element of x.
template <int64_t R>
NIBBLE_NEON_DOTPROD void tile(const Int8Tile& t) {
  int32x4_t dots[R][kVectors];
  for (auto& row : dots) {
    for (auto& dot : row) dot = vdupq_n_s32(0);
  }
  const int8_t* x = t.x;
  const auto* w = reinterpret_cast<const int8_t*>(t.w);
  for (int64_t s = 0; s < t.steps; ++s, x += kInt8Step, w += kWidth * kInt8Step) {
    int8x16_t row[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) row[v] = vld1q_s8(w + v * 16);
#pragma GCC unroll 6
    for (int64_t r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * kInt8Group, sizeof four);
      const int8x16_t left = vreinterpretq_s8_s32(vdupq_n_s32(four));
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) dots[r][v] = vdotq_s32(dots[r][v], row[v], left);
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t v = 0; v < kVectors; ++v) {
      add_scaled(dots[r][v], t.w_scales + v * kLanes, t.x_scales[r], t.first, t.sums + r * t.sums_stride + v * kLanes);
    }
  }
}

void multiply(int64_t rows, const Int8Tile& t) {
  static constexpr decltype(&tile<1>) kTiles[kRows] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  kTiles[rows - 1](t);
}

}  // namespace

const Int8Kernel kInt8NeonDotprod = kernel<kInt8Step>(multiply);

}  // namespace nibble::ops::cpu
