#pragma once
// Random numbers for inputs of tests.

#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "nibble/core/base/philox.h"

namespace nibble::test {

class RandomStream : public PhiloxStream {
 public:
  using PhiloxStream::PhiloxStream;

  /// Uniform in [0, 1), 24 random bits.
  float next_uniform() { return static_cast<float>(next_u32() >> 8) * 0x1p-24f; }
  /// Standard normal (Box-Muller, in double).
  float next_normal() {
    if (spare_) return static_cast<float>(*std::exchange(spare_, std::nullopt));
    const double radius = std::sqrt(-2.0 * std::log(1.0 - next_uniform_double()));
    const double angle = 2.0 * std::numbers::pi * next_uniform_double();
    spare_ = radius * std::sin(angle);
    return static_cast<float>(radius * std::cos(angle));
  }

 private:
  std::optional<double> spare_;
};

}  // namespace nibble::test
