#pragma once
// The 8-bit dynamic type (Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016) with the numbers of
// bitsandbytes: it quantizes the scales of 4-bit weights and the state of 8-bit optimizers.

#include <array>
#include <cstdint>

namespace nibble {

/// The signed map of 256 values in [-1, 1], ascending; the bits that published checkpoints have as `nested_quant_map`.
const std::array<float, 256>& dynamic_map();

/// The map of 256 values in [0, 1], ascending, twice as fine: `qmap2` of bitsandbytes' optimizers.
const std::array<float, 256>& unsigned_dynamic_map();

/// Finds the nearest value of a map in two steps: a table by the upper half of the number's bits, then one comparison.
class DynamicCodes {
 public:
  explicit DynamicCodes(const std::array<float, 256>& map);

  /// Code of the value nearest to x in [-1, 1]; a tie goes to the lower one, a NaN to any.
  uint8_t nearest(float x) const {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    const uint8_t low = lowest_[bits >> 16];
    return static_cast<uint8_t>(low + (x > thresholds_[low] ? 1 : 0));
  }

 private:
  std::array<uint8_t, 1 << 16> lowest_;  // code of the least number whose upper half this is
  std::array<float, 256> thresholds_;    // midpoints; infinity behind the last value
};

/// Of dynamic_map() and of unsigned_dynamic_map().
const DynamicCodes& dynamic_codes();
const DynamicCodes& unsigned_dynamic_codes();

}  // namespace nibble
