#include "nibble/core/tensor/memory_pool.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>

#include "nibble/core/base/error.h"
#include "nibble/core/tensor/pool_books.h"

namespace nibble {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::byte* system_allocate(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, bytes) != 0) return nullptr;
  if (bytes >= kHugePage) madvise(block, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

void free_all(const std::vector<std::byte*>& blocks) {
  for (std::byte* block : blocks) std::free(block);
}

}  // namespace

struct MemoryPool::Books {
  mutable std::mutex mutex;
  PoolBooks books;

  explicit Books(size_t budget) : books(budget) {}
  ~Books() { free_all(books.trim()); }
};

MemoryPool::MemoryPool(size_t budget) : books_(std::make_shared<Books>(budget)) {}
MemoryPool::~MemoryPool() = default;

std::shared_ptr<std::byte> MemoryPool::allocate(size_t bytes, const std::string& what) {
  const size_t size = PoolBooks::rounded(bytes);
  std::byte* block = nullptr;
  {
    std::lock_guard lock(books_->mutex);
    PoolBooks& books = books_->books;
    if (!books.fits(size)) {
      throw IoError("",
                    what + " needs " + std::to_string(size) + " bytes, " + std::to_string(books.in_use()) + " of " +
                        std::to_string(books.budget()) + " are in use",
                    "raise the memory budget or lower max_length, microbatch_size or r");
    }
    const PoolBooks::Taken taken = books.take(size);
    block = taken.block;
    free_all(taken.released);
  }
  if (block == nullptr && (block = system_allocate(size)) == nullptr) {
    std::lock_guard lock(books_->mutex);
    free_all(books_->books.trim());
    if ((block = system_allocate(size)) == nullptr) {
      books_->books.cancel(size);
      throw IoError("", what + " needs " + std::to_string(size) + " bytes and the system has none left",
                    "lower max_length or microbatch_size, or use gradient checkpointing");
    }
  }
  return {block, [books = books_, size](std::byte* released) {
            std::lock_guard lock(books->mutex);
            books->books.give(size, released);
          }};
}

size_t MemoryPool::in_use() const {
  std::lock_guard lock(books_->mutex);
  return books_->books.in_use();
}
size_t MemoryPool::peak() const {
  std::lock_guard lock(books_->mutex);
  return books_->books.peak();
}
void MemoryPool::reset_peak() {
  std::lock_guard lock(books_->mutex);
  books_->books.reset_peak();
}
size_t MemoryPool::budget() const { return books_->books.budget(); }
void MemoryPool::trim() {
  std::lock_guard lock(books_->mutex);
  free_all(books_->books.trim());
}

}  // namespace nibble
