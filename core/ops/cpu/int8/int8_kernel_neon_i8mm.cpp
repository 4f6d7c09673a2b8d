#include <algorithm>

#include "nibble/core/ops/cpu/int8/int8_tile_neon.h"

#define NIBBLE_NEON_I8MM __attribute__((target("arch=armv8.2-a+i8mm")))

namespace nibble::ops::cpu {

namespace {

using namespace int8_neon;

// The instruction multiplies two rows of x with two columns of W, 8 depths of each, and adds to 2 x 2 sums. 32
// registers: 3 x 8 of sums, three of x, one or two of W.
constexpr int64_t kStep = 8, kPairColumns = kWidth / 2;

/// P pairs of rows, the last of which may be of one row twice.
template <int64_t P>
NIBBLE_NEON_I8MM void tile(int64_t rows, const Int8Tile& t) {
  int32x4_t dots[P][kPairColumns];
  const int8_t* odd[P];
  for (int64_t p = 0; p < P; ++p) {
    for (auto& dot : dots[p]) dot = vdupq_n_s32(0);
    odd[p] = t.x + std::min(2 * p + 1, rows - 1) * kInt8Group;
  }
  const auto* w = reinterpret_cast<const int8_t*>(t.w);
  for (int64_t s = 0; s < t.steps; ++s, w += kWidth * kStep) {
    int8x16_t left[P];
#pragma GCC unroll 3
    for (int64_t p = 0; p < P; ++p) {
      left[p] = vcombine_s8(vld1_s8(t.x + 2 * p * kInt8Group + s * kStep), vld1_s8(odd[p] + s * kStep));
    }
#pragma GCC unroll 8
    for (int64_t q = 0; q < kPairColumns; ++q) {
      const int8x16_t right = vld1q_s8(w + q * 2 * kStep);
#pragma GCC unroll 3
      for (int64_t p = 0; p < P; ++p) dots[p][q] = vmmlaq_s32(dots[p][q], left[p], right);
    }
  }
  for (int64_t p = 0; p < P; ++p) {
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64x2_t one = vreinterpretq_s64_s32(dots[p][2 * v]), other = vreinterpretq_s64_s32(dots[p][2 * v + 1]);
      const float* scales = t.w_scales + v * kLanes;
      float* sums = t.sums + 2 * p * t.sums_stride + v * kLanes;
      add_scaled(vreinterpretq_s32_s64(vzip1q_s64(one, other)), scales, t.x_scales[2 * p], t.first, sums);
      if (2 * p + 1 == rows) continue;
      add_scaled(vreinterpretq_s32_s64(vzip2q_s64(one, other)), scales, t.x_scales[2 * p + 1], t.first,
                 sums + t.sums_stride);
    }
  }
}

void multiply(int64_t rows, const Int8Tile& t) {
  static constexpr decltype(&tile<1>) kTiles[kRows / 2] = {tile<1>, tile<2>, tile<3>};
  kTiles[(rows - 1) / 2](rows, t);
}

}  // namespace

const Int8Kernel kInt8NeonI8mm = kernel<kStep>(multiply);

}  // namespace nibble::ops::cpu
