#pragma once
// The memory of one rank: a byte budget, a ledger of what is held and the peak, and recycling of released blocks so
// that a training step allocates nothing after the first one.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace nibble {

/// Thread-safe. Blocks keep the pool's books alive, so a Tensor may outlive the pool object.
class MemoryPool {
 public:
  /// budget: bytes that may be held at once; 0 = no limit.
  explicit MemoryPool(size_t budget = 0);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// A block of at least `bytes` bytes, aligned to 64 (2 MiB and huge pages from 2 MiB on); contents undefined.
  /// Throws IoError naming `what`, the bytes, what is held and the budget when it does not fit or the system refuses.
  std::shared_ptr<std::byte> allocate(size_t bytes, const std::string& what = "tensor");

  /// Bytes in use by live blocks (recycled blocks that wait for reuse not counted).
  size_t in_use() const;
  /// Largest in_use() since the start or the last reset_peak().
  size_t peak() const;
  void reset_peak();
  size_t budget() const;
  /// Gives blocks that wait for reuse back to the system.
  void trim();

 private:
  struct Books;
  std::shared_ptr<Books> books_;
};

}  // namespace nibble
