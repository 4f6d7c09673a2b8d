#pragma once
// Ending a text that comes in pieces at a string.

#include <string>
#include <string_view>

namespace nibble {

/// Passes text through until `stop` comes, and holds back what may be the beginning of it. An empty `stop` never comes.
class StopText {
 public:
  explicit StopText(std::string stop) : stop_(std::move(stop)) {}

  /// Takes the next piece; returns what is certainly text in front of the stop. Nothing more comes once found().
  std::string push(std::string_view piece);
  bool found() const { return found_; }
  /// What was held back, when no more pieces come; empty when the stop was found.
  std::string finish();

 private:
  std::string stop_, held_;
  bool found_ = false;
};

}  // namespace nibble
