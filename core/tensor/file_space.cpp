#include "nibble/core/tensor/file_space.h"

#include <iterator>

namespace nibble {

int64_t FileSpace::take(int64_t size) {
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [offset, room] = *hole;
    if (room < size) continue;
    free_.erase(hole);
    if (room > size) free_.emplace(offset + size, room - size);
    return offset;
  }
  const int64_t offset = end_;
  end_ += size;
  return offset;
}

void FileSpace::give(int64_t offset, int64_t size) {
  auto hole = free_.emplace(offset, size).first;
  if (const auto next = std::next(hole); next != free_.end() && offset + size == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole != free_.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      free_.erase(hole);
      hole = before;
    }
  }
  if (hole->first + hole->second != end_) return;
  end_ = hole->first;
  free_.erase(hole);
}

}  // namespace nibble
