#include "nibble/core/tensor/pool_books.h"

#include <algorithm>
#include <iterator>

namespace nibble {

size_t PoolBooks::rounded(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  bytes = std::max<size_t>(bytes, 64);
  size_t step = 64;
  while (step * 64 < bytes) step *= 2;
  if (bytes >= kHugePage) step = std::max<size_t>(step, 4096);
  return (bytes + step - 1) / step * step;
}

// Before a new block of `size`: sizes that vary from step to step must not pile up. A step of constant sizes needs
// little more than its peak, so a quarter above it costs such a run nothing.
void PoolBooks::bound_waiting(size_t size, std::vector<PoolBlock>& released) {
  const size_t bound = budget_ != 0 ? budget_ : std::max(most_, in_use_ + size) / 4 * 5;
  while (!waiting_.empty() && in_use_ + waiting_bytes_ + size > bound) {
    const auto largest = std::prev(waiting_.end());
    released.push_back({largest->first, largest->second});
    waiting_bytes_ -= largest->first;
    waiting_.erase(largest);
  }
}

PoolBooks::Taken PoolBooks::take(size_t size) {
  Taken taken;
  if (auto found = waiting_.find(size); found != waiting_.end()) {
    taken.recycled = true;
    taken.block = found->second;
    waiting_.erase(found);
    waiting_bytes_ -= size;
  } else {
    bound_waiting(size, taken.released);
  }
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  most_ = std::max(most_, peak_);
  return taken;
}

void PoolBooks::give(size_t size, std::byte* block) {
  in_use_ -= size;
  waiting_.emplace(size, block);
  waiting_bytes_ += size;
}

std::vector<PoolBlock> PoolBooks::trim() {
  std::vector<PoolBlock> released;
  for (const auto& [size, block] : waiting_) released.push_back({size, block});
  waiting_.clear();
  waiting_bytes_ = 0;
  return released;
}

}  // namespace nibble
