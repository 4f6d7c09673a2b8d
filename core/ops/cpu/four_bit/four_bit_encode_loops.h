#pragma once
// The plain loops of four_bit_encode.h, written so that a compiler turns them into instructions of whatever level
// the function they are inlined into is compiled for. Include only in the .cpp files of the levels.

#include <algorithm>
#include <bit>
#include <cstring>

#include "nibble/core/ops/cpu/four_bit/four_bit_encode.h"

namespace nibble::ops::cpu::encode_loops {

[[gnu::always_inline]] inline float load(const std::byte* source, DType dtype, int64_t begin, int64_t count,
                                         float* values) {
  if (dtype == DType::f32) {
    std::memcpy(values, source + begin * 4, static_cast<size_t>(count) * 4);
  } else {
    const std::byte* from = source + begin * 2;  // not always at an even address
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, from + i * 2, sizeof(bits));
      values[i] = dtype == DType::bf16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16)
                                       : static_cast<float>(std::bit_cast<f16>(bits));
    }
  }
  // As integers magnitudes compare like the floats they are, with infinity and NaN on top.
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(largest);
}

[[gnu::always_inline]] inline void encode(const float* values, int64_t count, float inverse, const CodeRule& rule,
                                          uint8_t* packed) {
  constexpr int64_t kPiece = 64;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = std::min(kPiece, count - begin);
    int32_t below[kPiece + 1];
    for (int64_t i = 0; i < size; ++i) {
      const float scaled = values[begin + i] * inverse;
      int32_t n = 0;
      for (size_t t = 0; t < 15; ++t) n += scaled > rule.thresholds[t] ? 1 : 0;
      below[i] = n;
    }
    if (size % 2 != 0) below[size] = 7;
    for (int64_t i = 0; i < size; i += 2) {
      packed[(begin + i) / 2] = static_cast<uint8_t>(rule.codes[static_cast<size_t>(below[i])] << 4 |
                                                     rule.codes[static_cast<size_t>(below[i + 1])]);
    }
  }
}

}  // namespace nibble::ops::cpu::encode_loops
