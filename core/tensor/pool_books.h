#pragma once
// The books of a MemoryPool: how sizes are rounded, which released block is used again, which goes back to the system.
// A plan keeps the same books without blocks (parallel/plan/pool_model.h).

#include <cstddef>
#include <map>
#include <vector>

namespace nibble {

/// A block of memory with its rounded size.
struct PoolBlock {
  size_t size;
  std::byte* data;
};

class PoolBooks {
 public:
  /// budget: bytes that may be held at once; 0 = no limit.
  explicit PoolBooks(size_t budget) : budget_(budget) {}

  /// Sizes are rounded so that blocks of nearly equal size recycle: to 64 bytes below 4 KiB, above it so that at most
  /// 1/32 is added, and to whole pages from 2 MiB on.
  static size_t rounded(size_t bytes);

  bool fits(size_t size) const { return budget_ == 0 || in_use_ + size <= budget_; }

  struct Taken {
    bool recycled = false;
    std::byte* block = nullptr;       ///< the waiting block, if recycled
    std::vector<PoolBlock> released;  ///< waiting blocks that go back to the system: free these
  };
  /// Books a block of `size` (rounded) as in use.
  Taken take(size_t size);
  /// A block of `size` waits for reuse.
  void give(size_t size, std::byte* block);
  /// A block that the system refused.
  void cancel(size_t size) { in_use_ -= size; }
  /// Every waiting block: free these.
  std::vector<PoolBlock> trim();

  size_t budget() const { return budget_; }
  size_t in_use() const { return in_use_; }
  size_t waiting() const { return waiting_bytes_; }
  /// Largest in_use() since the last reset_peak().
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = in_use_; }

 private:
  void bound_waiting(size_t size, std::vector<PoolBlock>& released);

  size_t budget_ = 0, in_use_ = 0, peak_ = 0, waiting_bytes_ = 0;
  size_t most_ = 0;  // in_use_ at its largest, ever
  std::multimap<size_t, std::byte*> waiting_;
};

}  // namespace nibble
