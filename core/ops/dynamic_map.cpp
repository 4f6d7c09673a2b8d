#include "nibble/core/ops/dynamic_map.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace nibble {

namespace {

// Point k of torch.linspace(0.1, 1, count) in f32, as its vectorized kernel rounds it: from the nearer end.
float linspace_point(int k, int count) {
  const float start = 0.1f, end = 1.0f;
  const float step = (end - start) / static_cast<float>(count - 1);
  return k < count / 2 ? std::fma(step, static_cast<float>(k), start)
                       : std::fma(-step, static_cast<float>(count - 1 - k), end);
}

std::array<float, 256> make_map(bool is_signed) {
  std::array<float, 256> map{};
  size_t used = 0;
  for (int exponent = 0; exponent < 7; ++exponent) {
    const int count = (1 << (is_signed ? exponent : exponent + 1)) + 1;
    const float scale = static_cast<float>(std::pow(10.0, exponent - 6));
    for (int k = 0; k + 1 < count; ++k) {
      const float value = scale * ((linspace_point(k, count) + linspace_point(k + 1, count)) / 2);
      map[used++] = value;
      if (is_signed) map[used++] = -value;
    }
  }
  map[used++] = 0.0f;
  map[used++] = 1.0f;
  std::sort(map.begin(), map.end());
  return map;
}

}  // namespace

const std::array<float, 256>& dynamic_map() {
  static const std::array<float, 256> map = make_map(true);
  return map;
}

const std::array<float, 256>& unsigned_dynamic_map() {
  static const std::array<float, 256> map = make_map(false);
  return map;
}

DynamicCodes::DynamicCodes(const std::array<float, 256>& map) {
  for (size_t i = 0; i < 255; ++i) thresholds_[i] = (map[i] + map[i + 1]) / 2;
  thresholds_[255] = std::numeric_limits<float>::infinity();
  for (uint32_t upper = 0; upper < lowest_.size(); ++upper) {
    const bool negative = upper >= 0x8000u;  // of these, the least has all bits set
    const float least = std::bit_cast<float>(upper << 16 | (negative ? 0xffffu : 0u));
    const auto above = std::lower_bound(thresholds_.begin(), thresholds_.end() - 1, least);
    lowest_[upper] = std::isnan(least) ? 0 : static_cast<uint8_t>(above - thresholds_.begin());
  }
}

const DynamicCodes& dynamic_codes() {
  static const DynamicCodes codes(dynamic_map());
  return codes;
}

const DynamicCodes& unsigned_dynamic_codes() {
  static const DynamicCodes codes(unsigned_dynamic_map());
  return codes;
}

}  // namespace nibble
