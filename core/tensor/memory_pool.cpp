#include "nibble/core/tensor/memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/tensor/pool_accounting.h"

#ifdef __has_feature  // clang
#define NIBBLE_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define NIBBLE_ADDRESS_SANITIZER __SANITIZE_ADDRESS__
#endif
#if NIBBLE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace nibble {

namespace {

constexpr size_t kGuard = 4096;
// AddressSanitizer knows which bytes of a segment are a block's; what lies between two blocks is nobody's.
#if NIBBLE_ADDRESS_SANITIZER
constexpr size_t kGap = 64;
void allow(uintptr_t begin, size_t bytes) { __asan_unpoison_memory_region(reinterpret_cast<void*>(begin), bytes); }
void forbid(uintptr_t begin, size_t bytes) { __asan_poison_memory_region(reinterpret_cast<void*>(begin), bytes); }
#else
constexpr size_t kGap = 0;
void allow(uintptr_t, size_t) {}
void forbid(uintptr_t, size_t) {}
#endif

void unmap(uintptr_t begin, size_t size) {
  if (size > 0) munmap(reinterpret_cast<void*>(begin), size);
}

// A page behind the segment faults: who writes past its end is caught, and no two segments touch each other. An empty
// range where the system refuses.
AddressRange map_segment(size_t size) {
  const size_t alignment = size >= PoolAccounting::kHugePage ? PoolAccounting::kHugePage : kGuard;
  const size_t reserved = size + alignment;
  void* mapped = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return {};
  const uintptr_t from = reinterpret_cast<uintptr_t>(mapped),
                  begin = (from + alignment - kGuard) / alignment * alignment;
  unmap(from, begin - from);
  unmap(begin + size + kGuard, from + reserved - (begin + size + kGuard));
  if (mprotect(reinterpret_cast<void*>(begin), size, PROT_READ | PROT_WRITE) != 0) {
    unmap(begin, size + kGuard);
    return {};
  }
  if (alignment > kGuard) madvise(reinterpret_cast<void*>(begin), size, MADV_HUGEPAGE);
  forbid(begin, size);
  return {begin, begin + size};
}

void return_to_system(const std::vector<AddressRange>& ranges) {
  for (const AddressRange& range : ranges) {
    madvise(reinterpret_cast<void*>(range.begin), range.size(), MADV_DONTNEED);
  }
}

}  // namespace

struct MemoryPool::Accounts {
  mutable std::mutex mutex;
  PoolAccounting accounting;

  const bool has_bytes;
  MemoryPool* also_counted_in = nullptr;  // see host()
  MemoryUse use = MemoryUse::activations;
  MemorySplit held;
  int64_t mapped = 0, peak_in_use = 0;
  Peak most;

  Accounts(size_t budget, bool with_bytes) : accounting(budget, with_bytes ? kGap : 0), has_bytes(with_bytes) {}
  ~Accounts() {
    if (!has_bytes) return;
    for (const AddressRange& segment : accounting.segments()) {
      allow(segment.begin, segment.size());
      unmap(segment.begin, segment.size() + kGuard);
    }
  }

  void hold(MemoryUse of, int64_t bytes) { held[of] += bytes; }
  void note() {
    most.resident = std::max(most.resident, static_cast<int64_t>(accounting.resident()) + mapped);
    const int64_t now = static_cast<int64_t>(accounting.in_use()) + mapped;
    if (now <= peak_in_use) return;
    peak_in_use = now;
    most = {held, mapped, most.resident};
    most.split[MemoryUse::base] += mapped;
  }

  bool grow(size_t size) {
    if (!has_bytes) {  // addresses that nothing is at, behind those before
      const std::vector<AddressRange> segments = accounting.segments();
      const uintptr_t begin =
          segments.empty() ? PoolAccounting::kHugePage : segments.back().end + PoolAccounting::kHugePage;
      const uintptr_t aligned = begin / PoolAccounting::kHugePage * PoolAccounting::kHugePage;
      accounting.add_segment({aligned, aligned + accounting.next_segment(size)});
      return true;
    }
    AddressRange segment = map_segment(accounting.next_segment(size));
    if (segment.size() == 0) segment = map_segment(accounting.smallest_segment(size));
    if (segment.size() > 0) accounting.add_segment(segment);
    return segment.size() > 0;
  }
};

MemoryPool::MemoryPool(size_t budget, const Device& device)
    : accounts_(std::make_shared<Accounts>(budget, device.has_bytes())),
      device_(device),
      host_(device.host() ? nullptr : std::make_unique<MemoryPool>()) {
  if (!device.has_bytes()) host_->accounts_->also_counted_in = this;
}
MemoryPool::~MemoryPool() = default;

std::shared_ptr<std::byte> MemoryPool::allocate(size_t bytes, const std::string& what) {
  std::shared_ptr<std::byte> block = take(bytes, what);
  MemoryPool* const others = accounts_->also_counted_in;
  if (!others) return block;
  std::byte* const at = block.get();
  return {at, [block = std::move(block), counted = others->take(bytes, what)](std::byte*) {}};
}

std::shared_ptr<std::byte> MemoryPool::take(size_t bytes, const std::string& what) {
  const size_t size = PoolAccounting::rounded(bytes);
  uintptr_t address = 0;
  MemoryUse use = MemoryUse::activations;
  {
    std::lock_guard lock(accounts_->mutex);
    PoolAccounting& accounting = accounts_->accounting;
    if (accounts_->has_bytes && !accounting.fits(size)) {
      throw IoError("",
                    what + " needs " + bytes_text(static_cast<double>(size)) + ", " +
                        bytes_text(static_cast<double>(accounting.in_use())) + " of " +
                        bytes_text(static_cast<double>(accounting.budget())) + " are in use",
                    "raise the memory budget or lower max_length, microbatch_size or r");
    }
    std::optional<PoolAccounting::Taken> taken = accounting.take(size);
    if (!taken) {
      if (!accounts_->grow(size)) {
        throw IoError("", what + " needs " + bytes_text(static_cast<double>(size)) + " and the system has none left",
                      "lower max_length or microbatch_size, or use gradient checkpointing");
      }
      taken = accounting.take(size);
    }
    address = taken->address;
    use = accounts_->use;
    accounts_->hold(use, static_cast<int64_t>(size));
    accounts_->note();
    if (accounts_->has_bytes) {
      return_to_system(taken->returned);
      allow(address, bytes);
    }
  }
  return {reinterpret_cast<std::byte*>(address), [accounts = accounts_, size, use](std::byte* released) {
            std::lock_guard lock(accounts->mutex);
            accounts->hold(use, -static_cast<int64_t>(size));
            if (accounts->has_bytes) forbid(reinterpret_cast<uintptr_t>(released), size);
            accounts->accounting.give(reinterpret_cast<uintptr_t>(released), size);
          }};
}

size_t MemoryPool::in_use() const {
  std::lock_guard lock(accounts_->mutex);
  return accounts_->accounting.in_use();
}
size_t MemoryPool::peak() const {
  std::lock_guard lock(accounts_->mutex);
  return accounts_->accounting.peak();
}
void MemoryPool::reset_peak() {
  std::lock_guard lock(accounts_->mutex);
  accounts_->accounting.reset_peak();
}
size_t MemoryPool::budget() const { return accounts_->accounting.budget(); }
MemoryPool::Use::Use(MemoryPool& pool, MemoryUse use) : pool_(pool) {
  std::lock_guard lock(pool_.accounts_->mutex);
  before_ = std::exchange(pool_.accounts_->use, use);
}
MemoryPool::Use::~Use() {
  std::lock_guard lock(pool_.accounts_->mutex);
  pool_.accounts_->use = before_;
}

MemoryPool::Peak MemoryPool::take_peak() {
  std::lock_guard lock(accounts_->mutex);
  Accounts& accounts = *accounts_;
  const Peak most = std::exchange(accounts.most, {});
  accounts.peak_in_use = -1;
  accounts.note();
  return most;
}

void MemoryPool::count_mapped(int64_t more) {
  std::lock_guard lock(accounts_->mutex);
  accounts_->mapped += more;
  accounts_->note();
}

void MemoryPool::trim() {
  std::lock_guard lock(accounts_->mutex);
  const std::vector<AddressRange> free = accounts_->accounting.trim();
  if (accounts_->has_bytes) return_to_system(free);
}

}  // namespace nibble
