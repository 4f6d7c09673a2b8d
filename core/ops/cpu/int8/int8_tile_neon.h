#pragma once
// What the two 8-bit kernels for arm64 share: everything but the tile. Both sides are signed. Include only in .cpp
// files.

#include <arm_neon.h>

#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_packing.h"
#include "nibble/core/ops/cpu/int8/int8_kernel.h"

namespace nibble::ops::cpu::int8_neon {

constexpr int64_t kLevels = 127, kRows = 6, kLanes = 4, kVectors = 4, kWidth = kLanes * kVectors;

/// sums (+)= dots * scales * scale, for four columns.
inline void add_scaled(int32x4_t dots, const float* scales, float scale, bool first, float* sums) {
  const float32x4_t term = vmulq_f32(vcvtq_f32_s32(dots), vld1q_f32(scales));
  vst1q_f32(sums, vfmaq_n_f32(first ? vdupq_n_f32(0) : vld1q_f32(sums), term, scale));
}

inline void expand(const Int8Run& run, uint8_t* out) {
  int16x4_t quads[4];
  for (int i = 0; i < 4; ++i) {
    const float32x4_t values = vmulq_n_f32(vld1q_f32(run.table + 4 * i), run.scale);
    quads[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(values, run.inverse)));
  }
  const uint8x16_t table = vreinterpretq_u8_s8(
      vcombine_s8(vmovn_s16(vcombine_s16(quads[0], quads[1])), vmovn_s16(vcombine_s16(quads[2], quads[3]))));
  uint8_t of[16];
  vst1q_u8(of, table);
  int64_t i = run.begin;
  const int64_t end = run.begin + run.count;
  if (i % 2 != 0) *out++ = of[run.packed[i++ / 2] & 15];
  for (; i + 32 <= end; i += 32, out += 32) {
    const uint8x16_t bytes = vld1q_u8(run.packed + i / 2);
    const uint8x16_t even = vqtbl1q_u8(table, vshrq_n_u8(bytes, 4));
    const uint8x16_t odd = vqtbl1q_u8(table, vandq_u8(bytes, vdupq_n_u8(15)));
    vst2q_u8(out, {{even, odd}});
  }
  for (; i < end; ++i) *out++ = of[i % 2 == 0 ? run.packed[i / 2] >> 4 : run.packed[i / 2] & 15];
}

/// Columns are 4 rows of W here, 16 bytes of each at a time.
template <int64_t kStep>
void pack_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  constexpr int64_t kStripBytes = kWidth * kStep;
  int64_t k = 0;
  for (; columns == kLanes && k + 16 <= depth; k += 16, strip += 16 / kStep * kStripBytes) {
    uint64x2_t rows[kLanes];
    for (int64_t n = 0; n < kLanes; ++n) {
      rows[n] = vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(from + n * stride + k)));
    }
    auto* to = reinterpret_cast<uint8_t*>(strip);
    const auto store = [](uint8_t* at, uint64x2_t bytes) { vst1q_u8(at, vreinterpretq_u8_u64(bytes)); };
    if constexpr (kStep == 8) {
      for (int64_t n = 0; n < kLanes; n += 2) {
        store(to + n * kStep, vzip1q_u64(rows[n], rows[n + 1]));
        store(to + n * kStep + kStripBytes, vzip2q_u64(rows[n], rows[n + 1]));
      }
    } else {
      const auto words = [&](int64_t n) { return vreinterpretq_u32_u64(rows[n]); };
      const uint32x4_t low = vzip1q_u32(words(0), words(2)), low2 = vzip1q_u32(words(1), words(3));
      const uint32x4_t high = vzip2q_u32(words(0), words(2)), high2 = vzip2q_u32(words(1), words(3));
      store(to, vreinterpretq_u64_u32(vzip1q_u32(low, low2)));
      store(to + kStripBytes, vreinterpretq_u64_u32(vzip2q_u32(low, low2)));
      store(to + 2 * kStripBytes, vreinterpretq_u64_u32(vzip1q_u32(high, high2)));
      store(to + 3 * kStripBytes, vreinterpretq_u64_u32(vzip2q_u32(high, high2)));
    }
  }
  if (k < depth) cpu::pack_transposed<uint8_t, kLanes, kWidth, kStep>(from + k, stride, columns, depth - k, strip);
}

template <int64_t kStep>
void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  constexpr int64_t kStripBytes = kWidth * kStep;
  int64_t k = 0;
  for (; columns == kWidth && k + kStep <= depth; k += kStep, from += kStep * stride, strip += kStripBytes) {
    uint8x16_t rows[kStep];
    for (int64_t i = 0; i < kStep; ++i) rows[i] = vld1q_u8(reinterpret_cast<const uint8_t*>(from + i * stride));
    if constexpr (kStep == 8) {
      uint16x8x4_t low, high;  // pairs of rows, of the first and of the last 8 columns
      for (int64_t i = 0; i < 4; ++i) {
        low.val[i] = vreinterpretq_u16_u8(vzip1q_u8(rows[2 * i], rows[2 * i + 1]));
        high.val[i] = vreinterpretq_u16_u8(vzip2q_u8(rows[2 * i], rows[2 * i + 1]));
      }
      auto* to = reinterpret_cast<uint16_t*>(strip);
      vst4q_u16(to, low);
      vst4q_u16(to + kStripBytes / 4, high);
    } else {
      vst4q_u8(reinterpret_cast<uint8_t*>(strip), {{rows[0], rows[1], rows[2], rows[3]}});
    }
  }
  if (k < depth) cpu::pack_rows<uint8_t, kWidth, kStep>(from, stride, columns, depth - k, strip);
}

/// 1024 x 128 bytes are half of the 256 KB and more of a core's second cache level.
template <int64_t kStep>
constexpr Int8Kernel kernel(decltype(Int8Kernel::multiply) multiply) {
  return {.levels = kLevels,
          .bias = 0,
          .step = kStep,
          .rows = kRows,
          .lanes = kLanes,
          .width = kWidth,
          .depth_block = 1024,
          .panel_columns = 128,
          .multiply = multiply,
          .expand = expand,
          .pack_transposed = pack_transposed<kStep>,
          .pack_rows = pack_rows<kStep>};
}

}  // namespace nibble::ops::cpu::int8_neon
