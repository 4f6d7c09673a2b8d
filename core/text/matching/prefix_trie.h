#pragma once
// A fixed set of strings, searched by prefix.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

/// Strings with values >= 0. Walk it byte by byte: node = step(node, byte) from kRoot until it is kNone.
class PrefixTrie {
 public:
  static constexpr int32_t kRoot = 0, kNone = -1;

  PrefixTrie() : PrefixTrie(std::vector<std::pair<std::string, int32_t>>()) {}

  /// Empty strings are left out; of equal strings the first one counts.
  explicit PrefixTrie(std::vector<std::pair<std::string, int32_t>> entries);

  int32_t step(int32_t node, unsigned char byte) const {
    if (node == kRoot) return root_[byte];
    const Node& at = nodes_[static_cast<size_t>(node)];
    for (uint32_t k = at.first; k < at.last; ++k) {
      if (labels_[k] == byte) return static_cast<int32_t>(k) + 1;
      if (labels_[k] > byte) break;
    }
    return kNone;
  }

  /// The value of the string that ends at `node`, or -1.
  int32_t value(int32_t node) const { return nodes_[static_cast<size_t>(node)].value; }

  bool empty() const { return nodes_.size() == 1; }

 private:
  // Nodes are numbered level by level: the edge k, counted over all nodes, leads to node k + 1.
  struct Node {
    uint32_t first = 0, last = 0;  // its edges, in the order of their labels
    int32_t value = -1;
  };

  std::array<int32_t, 256> root_;
  std::vector<Node> nodes_;
  std::vector<unsigned char> labels_;
};

}  // namespace nibble
