#include <arm_neon.h>

#include "nibble/core/ops/cpu/four_bit/four_bit_expand.h"

namespace nibble::ops::cpu {

namespace {

/// The 16 values of a block, by bytes: a lookup takes 16 codes and gives one byte of each.
template <typename Out>
struct Values {
  static constexpr int kBytes = sizeof(Out);
  uint8x16_t planes[kBytes];

  Values(const float* table, float scale) {
    Out values[16];
    for (int code = 0; code < 16; ++code) values[code] = Out(table[code] * scale);
    const auto* bytes = reinterpret_cast<const uint8_t*>(values);
    if constexpr (kBytes == 2) {
      const uint8x16x2_t both = vld2q_u8(bytes);
      for (int i = 0; i < kBytes; ++i) planes[i] = both.val[i];
    } else {
      const uint8x16x4_t all = vld4q_u8(bytes);
      for (int i = 0; i < kBytes; ++i) planes[i] = all.val[i];
    }
  }

  void write(uint8x16_t codes, Out* out) const {
    auto* bytes = reinterpret_cast<uint8_t*>(out);
    if constexpr (kBytes == 2) {
      vst2q_u8(bytes, {{vqtbl1q_u8(planes[0], codes), vqtbl1q_u8(planes[1], codes)}});
    } else {
      vst4q_u8(bytes, {{vqtbl1q_u8(planes[0], codes), vqtbl1q_u8(planes[1], codes), vqtbl1q_u8(planes[2], codes),
                        vqtbl1q_u8(planes[3], codes)}});
    }
  }
};

template <typename Out>
void expand(const FourBitRun& run, Out* out) {
  for_each_block(run, out, [&](int64_t begin, int64_t count, float scale, Out* to) {
    const auto element = [&](int64_t at) {
      const uint8_t byte = run.packed[at / 2];
      return Out(run.table[(at % 2 == 0) == run.low_first ? byte & 15 : byte >> 4] * scale);
    };
    const Values<Out> values(run.table, scale);
    int64_t i = 0;
    if (begin % 2 != 0) to[i++] = element(begin);
    for (; i + 32 <= count; i += 32) {
      const uint8x16_t bytes = vld1q_u8(run.packed + (begin + i) / 2);
      const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
      const uint8x16_t even = run.low_first ? low : high, odd = run.low_first ? high : low;
      values.write(vzip1q_u8(even, odd), to + i);
      values.write(vzip2q_u8(even, odd), to + i + 16);
    }
    for (; i < count; ++i) to[i] = element(begin + i);
  });
}

}  // namespace

const FourBitExpander kFourBitExpandNeon = {expand<float>, expand<bf16>};

}  // namespace nibble::ops::cpu
