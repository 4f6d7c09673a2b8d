#pragma once
// 16-bit floating point values as storage formats; arithmetic is done in float.

#include <bit>
#include <cstdint>
#include <cstring>

namespace nibble {

/// bfloat16: the upper half of an IEEE float32.
struct bf16 {
  uint16_t bits;

  bf16() = default;
  /// Round to nearest even; NaN stays NaN (quiet).
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

/// IEEE binary16.
struct f16 {
  uint16_t bits;

  f16() = default;
  /// Round to nearest even, overflow to infinity.
  explicit f16(float value);
  explicit operator float() const;
};
static_assert(sizeof(f16) == 2);

}  // namespace nibble
