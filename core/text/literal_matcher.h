#pragma once
// Finds fixed strings in a text: the special tokens that it spells.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

struct LiteralMatch {
  int32_t id = 0;
  size_t begin = 0;
  size_t end = 0;
};

/// A set of strings, each with an id.
class LiteralMatcher {
 public:
  /// Adds `literal`; the first id given to a string stays. An empty string is left out.
  void add(std::string_view literal, int32_t id);

  bool empty() const { return literals_.empty(); }

  /// Matches that do not overlap, from left to right; at one place the longest.
  std::vector<LiteralMatch> find_all(std::string_view text) const;

  /// The longest match that begins at `position`; id is -1 where none does.
  LiteralMatch match_at(std::string_view text, size_t position) const;

 private:
  std::unordered_map<std::string, int32_t> literals_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte, longest first
};

}  // namespace nibble
