#include "nibble/core/text/matching/stop_text.h"

#include <algorithm>
#include <utility>

namespace nibble {

std::string StopText::push(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  if (stop_.empty()) return std::exchange(held_, {});
  const size_t at = held_.find(stop_);
  found_ = at != std::string::npos;
  size_t certain = at;
  if (!found_) {  // the longest end that the stop may begin with stays
    size_t open = std::min(held_.size(), stop_.size() - 1);
    while (open > 0 && !std::string_view(stop_).starts_with(std::string_view(held_).substr(held_.size() - open)))
      --open;
    certain = held_.size() - open;
  }
  std::string text = held_.substr(0, certain);
  held_.erase(0, found_ ? held_.size() : certain);
  return text;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

}  // namespace nibble
