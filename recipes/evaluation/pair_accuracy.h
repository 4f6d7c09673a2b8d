#pragma once
// How often a model prefers the better answer of a pair.

#include <cstdint>
#include <string>

#include "nibble/core/formatting/readable.h"

namespace nibble {

struct PairAccuracy {
  int64_t asked = 0;
  int64_t right = 0;   ///< chosen is above rejected
  double margins = 0;  ///< by how much, summed

  void add(double chosen, double rejected) {
    ++asked;
    right += chosen > rejected;
    margins += chosen - rejected;
  }
  double share() const { return asked == 0 ? 0 : static_cast<double>(right) / static_cast<double>(asked); }
  double margin() const { return asked == 0 ? 0 : margins / static_cast<double>(asked); }
  /// "accuracy 62.0% (31 of 50), mean margin 1.2"
  std::string text() const {
    return formatted("accuracy %.1f%% (%lld of %lld), mean margin %.4g", 100 * share(), static_cast<long long>(right),
                     static_cast<long long>(asked), margin());
  }
};

}  // namespace nibble
