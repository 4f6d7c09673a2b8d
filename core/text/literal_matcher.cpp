#include "nibble/core/text/literal_matcher.h"

#include <algorithm>

namespace nibble {

void LiteralMatcher::add(std::string_view literal, int32_t id) {
  if (literal.empty() || !literals_.emplace(literal, id).second) return;
  std::vector<size_t>& lengths = lengths_[static_cast<unsigned char>(literal[0])];
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), literal.size(), std::greater<>());
  if (place == lengths.end() || *place != literal.size()) lengths.insert(place, literal.size());
}

LiteralMatch LiteralMatcher::match_at(std::string_view text, size_t position) const {
  for (const size_t length : lengths_[static_cast<unsigned char>(text[position])]) {
    if (length > text.size() - position) continue;
    const auto found = literals_.find(std::string(text.substr(position, length)));
    if (found != literals_.end()) return {found->second, position, position + length};
  }
  return {-1, position, position};
}

std::vector<LiteralMatch> LiteralMatcher::find_all(std::string_view text) const {
  std::vector<LiteralMatch> matches;
  if (empty()) return matches;
  for (size_t position = 0; position < text.size();) {
    const LiteralMatch match = match_at(text, position);
    if (match.id >= 0) matches.push_back(match);
    position = match.id >= 0 ? match.end : position + 1;
  }
  return matches;
}

}  // namespace nibble
