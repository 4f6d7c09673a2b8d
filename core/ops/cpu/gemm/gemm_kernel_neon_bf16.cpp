#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packing.h"

#define NIBBLE_NEON_BF16 __attribute__((target("arch=armv8.2-a+bf16")))

namespace nibble::ops::cpu {

namespace {

// The instruction multiplies two rows of A with two columns of B, 4 depths of each, and adds to 2 x 2 sums. 32
// registers: 3 x 8 of sums, three of A, one or two of B.
constexpr int64_t kPairRows = 3, kRows = 2 * kPairRows, kLanes = 4, kPairColumns = 8, kWidth = 2 * kPairColumns;
constexpr int64_t kStep = 4;

/// 4 bf16 of a row of A, and 4 of the next one.
NIBBLE_NEON_BF16 inline bfloat16x8_t two_rows(const std::byte* even, const std::byte* odd) {
  uint64_t four[2];
  std::memcpy(&four[0], even, sizeof four[0]);
  std::memcpy(&four[1], odd, sizeof four[1]);
  return vreinterpretq_bf16_u64(vcombine_u64(vcreate_u64(four[0]), vcreate_u64(four[1])));
}

/// P pairs of rows, the last of which may be of one row twice; Q pairs of columns.
template <int64_t P, int64_t Q>
NIBBLE_NEON_BF16 void tile(int64_t rows, const TileInput& input, float* c, int64_t c_stride, bool add) {
  float32x4_t sums[P][Q];
  for (auto& row : sums) {
    for (auto& sum : row) sum = vdupq_n_f32(0);
  }
  for (const TileInput* part = &input; part != nullptr; part = part->epilogue) {
    const std::byte *even[P], *odd[P];
    for (int64_t p = 0; p < P; ++p) {
      even[p] = part->a + 2 * p * part->a_row_bytes;
      odd[p] = part->a + std::min(2 * p + 1, rows - 1) * part->a_row_bytes;
    }
    const auto* b = reinterpret_cast<const bfloat16_t*>(part->b);
    for (int64_t s = 0, at = 0; s < part->steps; ++s, at += part->a_step_bytes, b += kWidth * kStep) {
      bfloat16x8_t left[P];
#pragma GCC unroll 3
      for (int64_t p = 0; p < P; ++p) left[p] = two_rows(even[p] + at, odd[p] + at);
#pragma GCC unroll 8
      for (int64_t q = 0; q < Q; ++q) {
        const bfloat16x8_t right = vld1q_bf16(b + q * 2 * kStep);
#pragma GCC unroll 3
        for (int64_t p = 0; p < P; ++p) sums[p][q] = vbfmmlaq_f32(sums[p][q], left[p], right);
      }
    }
  }
  const auto keep = [&](float* to, float32x4_t four)
                        NIBBLE_NEON_BF16 { vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), four) : four); };
  for (int64_t p = 0; p < P; ++p) {
    for (int64_t q = 0; q < Q; q += 2) {
      const float64x2_t one = vreinterpretq_f64_f32(sums[p][q]), other = vreinterpretq_f64_f32(sums[p][q + 1]);
      float* to = c + 2 * p * c_stride + 2 * q;
      keep(to, vreinterpretq_f32_f64(vzip1q_f64(one, other)));
      if (2 * p + 1 < rows) keep(to + c_stride, vreinterpretq_f32_f64(vzip2q_f64(one, other)));
    }
  }
}

void multiply(int64_t rows, int64_t columns, const TileInput& input, const TileOutput& output) {
  using Tile = decltype(&tile<1, 2>);
  static constexpr Tile kTiles[kPairRows][kPairColumns / 2] = {{tile<1, 2>, tile<1, 4>, tile<1, 6>, tile<1, 8>},
                                                               {tile<2, 2>, tile<2, 4>, tile<2, 6>, tile<2, 8>},
                                                               {tile<3, 2>, tile<3, 4>, tile<3, 6>, tile<3, 8>}};
  kTiles[(rows - 1) / 2][(columns - 1) / kLanes](rows, input, output.sums, output.sums_stride, !output.first);
  if (output.last) store_sums(output.sums, rows, columns, output);
}

}  // namespace

// 512 x 192 bf16 are 192 KB, see kGemmNeon.
const GemmKernel kGemmNeonBf16 = plain_kernel<bf16, kRows, kLanes, kWidth, kStep>(512, 192, multiply);

}  // namespace nibble::ops::cpu
