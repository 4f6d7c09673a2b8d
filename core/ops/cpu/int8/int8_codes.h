#pragma once
// Rounding f32 to 8 bits, the same bits at every level.

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nibble::ops::cpu {

/// The larger magnitude; what is not finite counts as the largest.
inline float int8_larger(float a, float b) {
  const uint32_t x = std::bit_cast<uint32_t>(a) & 0x7fffffffu, y = std::bit_cast<uint32_t>(b) & 0x7fffffffu;
  return std::bit_cast<float>(std::max(x, y));
}

/// The largest magnitude of `count` values; not finite if one of them is not.
float int8_largest(const float* values, int64_t count);
/// most[i] = the larger magnitude of most[i] and values[i]
void int8_keep_larger(const float* values, int64_t count, float* most);
/// out[i] = values[i] * inverses[i] to the nearest whole number, ties to even, plus the bias.
void int8_codes(const float* values, const float* inverses, int64_t count, int32_t bias, uint8_t* out);

/// What a group's elements are multiplied by before they are rounded to -levels ... levels, and afterwards: see
/// ref::Int8Scale.
struct Int8Scale {
  Int8Scale(float largest, int64_t levels);
  float scale, inverse;
};

}  // namespace nibble::ops::cpu
