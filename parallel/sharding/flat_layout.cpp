#include "nibble/parallel/sharding/flat_layout.h"

#include <algorithm>

namespace nibble {

FlatLayout::FlatLayout(std::vector<int64_t> sizes, int ranks, int64_t alignment, int64_t grain)
    : sizes_(std::move(sizes)) {
  for (const int64_t size : sizes_) {
    offsets_.push_back(size_);
    size_ += (size + alignment - 1) / alignment * alignment;
  }
  shard_bounds_.push_back(0);
  size_t tensor = 0;
  for (int r = 1; r < ranks; ++r) {
    const int64_t ideal = size_ / ranks * r + size_ % ranks * r / ranks;
    while (tensor + 1 < sizes_.size() && offsets_[tensor + 1] <= ideal) ++tensor;
    int64_t bound = 0;
    if (!sizes_.empty()) {
      const int64_t end = tensor + 1 < sizes_.size() ? offsets_[tensor + 1] : size_;
      const int64_t inside = (ideal - offsets_[tensor] + grain / 2) / grain * grain;
      bound = inside < sizes_[tensor] ? offsets_[tensor] + inside : end;
      // Small tensors are not split: they go where more of them lies.
      if (sizes_[tensor] <= grain) bound = ideal - offsets_[tensor] < end - ideal ? offsets_[tensor] : end;
    }
    shard_bounds_.push_back(std::max(bound, shard_bounds_.back()));
  }
  shard_bounds_.push_back(size_);
}

std::vector<FlatPart> FlatLayout::parts(int rank) const {
  const int64_t begin = shard_bounds_[static_cast<size_t>(rank)], end = shard_bounds_[static_cast<size_t>(rank) + 1];
  std::vector<FlatPart> parts;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const int64_t from = std::max(begin, offsets_[i]), to = std::min(end, offsets_[i] + sizes_[i]);
    if (from < to) parts.push_back({i, from - offsets_[i], to - offsets_[i], from});
  }
  return parts;
}

}  // namespace nibble
