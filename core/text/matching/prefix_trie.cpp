#include "nibble/core/text/matching/prefix_trie.h"

#include <algorithm>

namespace nibble {

PrefixTrie::PrefixTrie(std::vector<std::pair<std::string, int32_t>> entries) {
  root_.fill(kNone);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> level{{0, entries.size(), 0}}, next;
  nodes_.emplace_back();
  size_t node = 0;
  while (!level.empty()) {
    next.clear();
    for (Range range : level) {
      Node& at = nodes_[node];
      // strings that end here come first
      while (range.begin < range.end && entries[range.begin].first.size() == range.depth) {
        if (at.value < 0 && range.depth > 0) at.value = entries[range.begin].second;
        ++range.begin;
      }
      at.first = static_cast<uint32_t>(labels_.size());
      size_t begin = range.begin;
      while (begin < range.end) {
        const auto label = static_cast<unsigned char>(entries[begin].first[range.depth]);
        size_t end = begin;
        while (end < range.end && static_cast<unsigned char>(entries[end].first[range.depth]) == label) ++end;
        labels_.push_back(label);
        next.push_back({begin, end, range.depth + 1});
        begin = end;
      }
      nodes_[node].last = static_cast<uint32_t>(labels_.size());
      nodes_.resize(labels_.size() + 1);
      ++node;
    }
    std::swap(level, next);
  }
  for (uint32_t k = 0; k < nodes_[0].last; ++k) root_[labels_[k]] = static_cast<int32_t>(k) + 1;
}

}  // namespace nibble
