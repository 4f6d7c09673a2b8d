#pragma once
// The segmentation with the largest sum of scores (Kudo 2018).

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "nibble/core/text/matching/prefix_trie.h"
#include "nibble/core/text/tokenizers/models/token_model.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

/// Cuts `text` into entries of `trie`, and into its characters where none is an entry. Sums are taken from left to
/// right, beginning with `score`, which becomes that of the path; of equal ones the first stays. score_of(id, bytes):
/// an entry's score, none where it does not count. unknown(): the id of other characters.
template <typename Score, typename ScoreOf, typename Unknown>
std::vector<ModelToken> best_path(std::string_view text, const PrefixTrie& trie, const ScoreOf& score_of,
                                  Score unknown_score, const Unknown& unknown, Score& score) {
  constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();
  struct Best {
    Score score;
    uint32_t begin;
    int32_t id;
  };
  std::vector<Best> best(text.size() + 1, Best{score, kNowhere, -1});
  const auto improve = [&](size_t end, Score sum, size_t begin, int32_t id) {
    if (best[end].begin == kNowhere || sum > best[end].score) best[end] = {sum, static_cast<uint32_t>(begin), id};
  };
  for (size_t begin = 0; begin < text.size();) {
    const Score till_here = best[begin].score;
    const size_t character = utf8_length_within(text, begin);
    bool known = false;
    int32_t node = PrefixTrie::kRoot;
    for (size_t at = begin; at < text.size(); ++at) {
      node = trie.step(node, static_cast<unsigned char>(text[at]));
      if (node == PrefixTrie::kNone) break;
      const int32_t id = trie.value(node);
      const size_t length = at + 1 - begin;
      const std::optional<Score> own = id < 0 ? std::nullopt : score_of(id, length);
      if (!own) continue;
      improve(at + 1, till_here + *own, begin, id);
      known = known || length == character;
    }
    if (!known) improve(begin + character, till_here + unknown_score, begin, unknown());
    begin += character;
  }
  std::vector<ModelToken> tokens;
  for (auto end = static_cast<uint32_t>(text.size()); end > 0; end = best[end].begin)
    tokens.push_back({best[end].id, best[end].begin, end});
  std::reverse(tokens.begin(), tokens.end());
  score = best.back().score;
  return tokens;
}

}  // namespace nibble
