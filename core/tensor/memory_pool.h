#pragma once
// The memory of one rank: a byte budget, a ledger of what is held and the peak, and recycling of released blocks so
// that a training step allocates nothing after the first one.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nibble/core/tensor/device.h"
#include "nibble/core/tensor/memory_use.h"

namespace nibble {

/// Thread-safe. Blocks keep the accounting of the pool alive, so a Tensor may outlive the pool object.
class MemoryPool {
 public:
  /// budget: bytes that may be held at once; 0 = no limit. device: whose memory it is, which must outlive all blocks. A
  /// device without bytes has blocks that are counted, at addresses where nothing is, and refuses none: peak() tells
  /// what a budget would have to be.
  explicit MemoryPool(size_t budget = 0, const Device& device = cpu_device());
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

  /// What blocks are taken for while it lives; what holds for none is for activations.
  class Use {
   public:
    Use(MemoryPool& pool, MemoryUse use);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    MemoryPool& pool_;
    MemoryUse before_;
  };
  /// What was held when most was, and how much was resident at most.
  struct Peak {
    MemorySplit split;     ///< blocks by use, and mapped bytes (of the base)
    int64_t mapped = 0;    ///< of it
    int64_t resident = 0;  ///< pages of blocks, or of what they left, and mapped bytes
  };
  /// Since the start or the last call.
  Peak take_peak();
  /// So many more (or fewer) bytes of files are resident, which are no pool's: called by a device that counts them.
  void count_mapped(int64_t more);

  const Device& device() const { return device_; }
  /// For what the host reads and writes on every device: token ids, targets, positions, numbers on their way to another
  /// rank. This pool itself where its memory is the host's; of a device without bytes one whose blocks are counted here
  /// too, as if it were.
  MemoryPool& host() { return host_ ? *host_ : *this; }
  /// Gives blocks that wait for reuse back to the system.
  void trim();

 private:
  std::shared_ptr<std::byte> take(size_t bytes, const std::string& what);

  struct Accounts;
  std::shared_ptr<Accounts> accounts_;
  const Device& device_;
  std::unique_ptr<MemoryPool> host_;
};

}  // namespace nibble
