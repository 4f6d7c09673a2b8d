#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace nibble {

/// "a, b, c": the texts of a range in its order, each as `text_of` (a member, a function) gives it.
template <typename Range, typename TextOf = std::identity>
std::string joined(const Range& range, std::string_view between = ", ", const TextOf& text_of = {}) {
  std::string all;
  bool first = true;
  for (const auto& one : range) {
    if (!first) all += between;
    first = false;
    all += std::invoke(text_of, one);
  }
  return all;
}

}  // namespace nibble
