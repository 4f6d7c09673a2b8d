#pragma once
// The values of 16 codes by their bytes, for permutations of bytes.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace nibble::ops::cpu {

struct FourBitPlanes {
  alignas(32) std::array<std::array<uint8_t, 32>, 4> bytes;  ///< of f32, the lowest first, each twice
  bool upper_halves = true;                                  ///< the lower two bytes of all values are 0

  explicit FourBitPlanes(const std::array<float, 16>& values) {
    for (size_t code = 0; code < 32; ++code) {
      const auto bits = std::bit_cast<uint32_t>(values[code % 16]);
      for (size_t i = 0; i < 4; ++i) bytes[i][code] = static_cast<uint8_t>(bits >> (8 * i));
      upper_halves = upper_halves && bits % (1U << 16) == 0;
    }
  }
};

}  // namespace nibble::ops::cpu
