#pragma once
// Who is in a group of a communicator that is split.

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// Collective: the ranks of `all` that come with the caller's color, by their keys, then by rank.
inline std::vector<int> group_members(Communicator& all, int color, int key) {
  MemoryPool pool;
  const std::array<int32_t, 2> mine = {color, key};
  Tensor places = Tensor::empty(pool, {all.size(), 2}, DType::i32);
  all.all_gather("split", Tensor::from<int32_t>(pool, {1, 2}, mine), places);
  const auto of = places.span<const int32_t>();
  std::vector<std::pair<int, int>> found;  // key, rank
  for (int r = 0; r < all.size(); ++r) {
    const size_t at = 2 * static_cast<size_t>(r);
    if (of[at] == color) found.emplace_back(of[at + 1], r);
  }
  std::ranges::sort(found);
  std::vector<int> members;
  for (const auto& place : found) members.push_back(place.second);
  return members;
}

}  // namespace nibble
