#include "nibble/core/text/matching/literal_matcher.h"

namespace nibble {

std::vector<LiteralMatch> LiteralMatcher::find_all(std::string_view text) const {
  std::vector<LiteralMatch> matches;
  if (empty()) return matches;
  for (size_t begin = 0; begin < text.size();) {
    LiteralMatch longest{-1, begin, begin};
    int32_t node = PrefixTrie::kRoot;
    for (size_t at = begin; at < text.size(); ++at) {
      node = trie_.step(node, static_cast<unsigned char>(text[at]));
      if (node == PrefixTrie::kNone) break;
      if (trie_.value(node) >= 0) longest = {trie_.value(node), begin, at + 1};
    }
    if (longest.id >= 0) matches.push_back(longest);
    begin = longest.id >= 0 ? longest.end : begin + 1;
  }
  return matches;
}

}  // namespace nibble
