#include "nibble/core/tensor/pool_accounting.h"

#include <algorithm>
#include <iterator>

namespace nibble {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kFirstSegment = size_t{64} << 10, kLargestGrowth = size_t{1} << 30;

uintptr_t up(uintptr_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

size_t PoolAccounting::rounded(size_t bytes) { return up(std::max<size_t>(bytes, 1), 64); }

void PoolAccounting::add_free(AddressRange range) {
  free_.emplace(range.begin, range.end);
  free_by_size_.emplace(range.size(), range.begin);
}

void PoolAccounting::remove_free(AddressRange range) {
  free_.erase(range.begin);
  free_by_size_.erase({range.size(), range.begin});
}

std::optional<PoolAccounting::Taken> PoolAccounting::take(size_t size) {
  const size_t alignment = size >= kHugePage ? kHugePage : 64;
  for (auto fit = free_by_size_.lower_bound({size + gap_, 0}); fit != free_by_size_.end(); ++fit) {
    const AddressRange range{fit->second, fit->second + fit->first};
    const uintptr_t begin = up(range.begin, alignment), end = begin + size + gap_;
    if (end > range.end) continue;
    remove_free(range);
    if (begin > range.begin) add_free({range.begin, begin});
    if (range.end > end) add_free({end, range.end});
    in_use_ += size;
    peak_ = std::max(peak_, in_use_);
    most_ = std::max(most_, peak_);
    if (!touch({begin, end})) return Taken{begin, {}};
    // Free pages beyond an eighth of what blocks ever held, which steps do not come near, are returned.
    const size_t bound = most_ / 8 * 9 + kHugePage;
    return Taken{begin, return_pages(budget_ != 0 ? std::min(bound, std::max(budget_, most_)) : bound)};
  }
  return std::nullopt;
}

void PoolAccounting::give(uintptr_t address, size_t size) {
  in_use_ -= size;
  AddressRange range{address, address + size + gap_};
  // Segments do not touch each other, so neighbours are of the same one.
  const auto above = free_.lower_bound(range.end);
  const AddressRange next = above != free_.end() ? AddressRange{above->first, above->second} : AddressRange{};
  const AddressRange before =
      above != free_.begin() ? AddressRange{std::prev(above)->first, std::prev(above)->second} : AddressRange{};
  if (next.begin == range.end) {
    remove_free(next);
    range.end = next.end;
  }
  if (before.end == range.begin) {
    remove_free(before);
    range.begin = before.begin;
  }
  add_free(range);
}

// Whether pages became resident.
bool PoolAccounting::touch(AddressRange block) {
  auto& [begin, segment] = *segment_of(block.begin);
  const auto at = [&](uintptr_t address) {
    return segment.resident.begin() + static_cast<ptrdiff_t>((address - begin) / segment.page);
  };
  const auto first = at(block.begin), end = at(block.end - 1) + 1;
  const auto added = static_cast<size_t>(std::count(first, end, 0));
  std::fill(first, end, 1);
  resident_ += added * segment.page;
  return added > 0;
}

// Free pages, those of the largest ranges first, until at most `bound` bytes are resident.
std::vector<AddressRange> PoolAccounting::return_pages(size_t bound) {
  std::vector<AddressRange> returned;
  for (auto free = free_by_size_.rbegin(); free != free_by_size_.rend() && resident_ > bound; ++free) {
    if (free->first < kPage) break;
    auto& [begin, segment] = *segment_of(free->second);
    const size_t end = (free->second + free->first - begin) / segment.page;
    for (size_t page = up(free->second - begin, segment.page) / segment.page; page < end; ++page) {
      if (!segment.resident[page]) continue;
      segment.resident[page] = 0;
      resident_ -= segment.page;
      const AddressRange at{begin + page * segment.page, begin + (page + 1) * segment.page};
      if (!returned.empty() && returned.back().end == at.begin) {
        returned.back().end = at.end;
      } else {
        returned.push_back(at);
      }
    }
  }
  return returned;
}

size_t PoolAccounting::smallest_segment(size_t size) const {
  size += gap_;
  return up(size, size >= kHugePage ? kHugePage : kPage);
}

size_t PoolAccounting::next_segment(size_t size) const {
  return smallest_segment(std::max(size, std::clamp(mapped_, kFirstSegment, kLargestGrowth)));
}

void PoolAccounting::add_segment(AddressRange segment) {
  const size_t page = segment.size() >= kHugePage ? kHugePage : kPage;
  segments_.emplace(segment.begin, Segment{segment.end, page, std::vector<char>(segment.size() / page)});
  mapped_ += segment.size();
  add_free(segment);
}

std::vector<AddressRange> PoolAccounting::segments() const {
  std::vector<AddressRange> ranges;
  for (const auto& [begin, segment] : segments_) ranges.push_back({begin, segment.end});
  return ranges;
}

}  // namespace nibble
