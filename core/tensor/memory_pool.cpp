#include "nibble/core/tensor/memory_pool.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "nibble/core/base/error.h"
#include "nibble/core/tensor/pool_books.h"

namespace nibble {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// From here on a block is a mapping of its own: what the C library's heap does with released blocks between others
// would stay resident, 10 to 30 MiB of a rank. (Not under AddressSanitizer, which guards blocks of the heap.)
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kMapped = std::numeric_limits<size_t>::max();
#else
constexpr size_t kMapped = size_t{1} << 20;
#endif

// Sizes from 1 MiB on are whole pages (PoolBooks::rounded).
std::byte* map_block(size_t size, size_t alignment) {
  const size_t more = alignment > 1 ? alignment : 0;
  void* mapped = mmap(nullptr, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  if (more == 0) return begin;
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (before > 0) munmap(begin, before);
  if (more > before) munmap(begin + before + size, more - before);
  return begin + before;
}

std::byte* system_allocate(size_t size) {
  const bool huge = size >= kHugePage;
  void* block = nullptr;
  if (size >= kMapped) {
    block = map_block(size, huge ? kHugePage : 1);
  } else if (posix_memalign(&block, huge ? kHugePage : 64, size) != 0) {
    return nullptr;
  }
  if (block != nullptr && huge) madvise(block, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

void free_all(const std::vector<PoolBlock>& blocks) {
  for (const PoolBlock& block : blocks) {
    if (block.size >= kMapped) {
      munmap(block.data, block.size);
    } else {
      std::free(block.data);
    }
  }
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
