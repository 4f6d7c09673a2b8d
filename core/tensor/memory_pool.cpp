#include "nibble/core/tensor/memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Sizes are rounded so that blocks of nearly equal size recycle: to 64 bytes below 4 KiB, else to 1/8 of a power of
// two.
size_t rounded(size_t bytes) {
  bytes = std::max<size_t>(bytes, 64);
  size_t step = 64;
  while (step * 64 < bytes) step *= 2;
  if (bytes >= kHugePage) step = std::max<size_t>(step, 4096);
  return (bytes + step - 1) / step * step;
}

std::byte* system_allocate(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, bytes) != 0) return nullptr;
  if (bytes >= kHugePage) madvise(block, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

}  // namespace

struct MemoryPool::Books {
  mutable std::mutex mutex;
  size_t budget = 0, in_use = 0, peak = 0, waiting_bytes = 0;
  size_t most = 0;  // in_use at its largest, ever
  std::multimap<size_t, std::byte*> waiting;

  // Before a new block of `size`: sizes that vary from step to step must not pile up. A step of constant sizes needs
  // little more than its peak, so a quarter above it costs such a run nothing.
  void bound_waiting(size_t size) {
    const size_t bound = budget != 0 ? budget : std::max(most, in_use + size) / 4 * 5;
    while (!waiting.empty() && in_use + waiting_bytes + size > bound) {
      const auto largest = std::prev(waiting.end());
      std::free(largest->second);
      waiting_bytes -= largest->first;
      waiting.erase(largest);
    }
  }

  void trim() {
    for (auto& [size, block] : waiting) std::free(block);
    waiting.clear();
    waiting_bytes = 0;
  }
  ~Books() { trim(); }
};

MemoryPool::MemoryPool(size_t budget) : books_(std::make_shared<Books>()) { books_->budget = budget; }
MemoryPool::~MemoryPool() = default;

std::shared_ptr<std::byte> MemoryPool::allocate(size_t bytes, const std::string& what) {
  const size_t size = rounded(bytes);
  std::byte* block = nullptr;
  {
    std::lock_guard lock(books_->mutex);
    Books& books = *books_;
    if (books.budget != 0 && books.in_use + size > books.budget) {
      throw IoError("",
                    what + " needs " + std::to_string(size) + " bytes, " + std::to_string(books.in_use) + " of " +
                        std::to_string(books.budget) + " are in use",
                    "raise the memory budget or lower max_length, microbatch_size or r");
    }
    if (auto found = books.waiting.find(size); found != books.waiting.end()) {
      block = found->second;
      books.waiting.erase(found);
      books.waiting_bytes -= size;
    } else {
      books.bound_waiting(size);
    }
    books.in_use += size;
    books.peak = std::max(books.peak, books.in_use);
    books.most = std::max(books.most, books.peak);
  }
  if (block == nullptr && (block = system_allocate(size)) == nullptr) {
    std::lock_guard lock(books_->mutex);
    books_->trim();
    if ((block = system_allocate(size)) == nullptr) {
      books_->in_use -= size;
      throw IoError("", what + " needs " + std::to_string(size) + " bytes and the system has none left",
                    "lower max_length or microbatch_size, or use gradient checkpointing");
    }
  }
  return {block, [books = books_, size](std::byte* released) {
            std::lock_guard lock(books->mutex);
            books->in_use -= size;
            books->waiting.emplace(size, released);
            books->waiting_bytes += size;
          }};
}

size_t MemoryPool::in_use() const {
  std::lock_guard lock(books_->mutex);
  return books_->in_use;
}
size_t MemoryPool::peak() const {
  std::lock_guard lock(books_->mutex);
  return books_->peak;
}
void MemoryPool::reset_peak() {
  std::lock_guard lock(books_->mutex);
  books_->peak = books_->in_use;
}
size_t MemoryPool::budget() const { return books_->budget; }
void MemoryPool::trim() {
  std::lock_guard lock(books_->mutex);
  books_->trim();
}

}  // namespace nibble
