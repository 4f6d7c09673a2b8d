#pragma once
// Finds fixed strings in a text: the special tokens that it spells.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/core/text/matching/prefix_trie.h"

namespace nibble {

struct LiteralMatch {
  int32_t id = 0;
  size_t begin = 0;
  size_t end = 0;
};

/// A set of strings, each with an id.
class LiteralMatcher {
 public:
  LiteralMatcher() = default;
  explicit LiteralMatcher(std::vector<std::pair<std::string, int32_t>> literals) : trie_(std::move(literals)) {}

  bool empty() const { return trie_.empty(); }

  /// Matches that do not overlap, from left to right; at one place the longest.
  std::vector<LiteralMatch> find_all(std::string_view text) const;

 private:
  PrefixTrie trie_;
};

}  // namespace nibble
