#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/backend.h"

namespace nibble {

namespace {

class CpuDevice final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  bool host() const override { return true; }
  void zero(std::byte* bytes, size_t count) const override {
    constexpr int64_t kPiece = int64_t{1} << 18;  // some 20 us; on machines with several nodes these place new pages
    parallel_for(static_cast<int64_t>(count), kPiece,
                 [=](int64_t begin, int64_t end) { std::memset(bytes + begin, 0, static_cast<size_t>(end - begin)); });
  }
  void copy(const std::byte* from, std::byte* to, size_t count) const override { std::copy_n(from, count, to); }
  void release(const std::byte* bytes, size_t count) const override {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(bytes);
    advise((begin + page - 1) / page * page, (begin + count) / page * page, MADV_DONTNEED);
  }
  // With the pages that they share with others: ranges that meet are one to the system, whose number of ranges is
  // limited. A system that has no such pages refuses, and nothing is lost.
  void prefer_huge_pages(const std::byte* bytes, size_t count) const override {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(bytes);
    advise(begin / page * page, (begin + count + page - 1) / page * page, MADV_HUGEPAGE);
  }
  const ops::Backend& backend() const override { return bodies_; }

 private:
  static void advise(uintptr_t begin, uintptr_t end, int advice) {
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
  }

#define NIBBLE_MEMBER(op) .op = ops::cpu::op,
#define NIBBLE_SIMD_MEMBER(op) .op = ops::cpu::simd::op,
  ops::Backend bodies_ = {NIBBLE_OPERATIONS_BY_BODY(NIBBLE_MEMBER, NIBBLE_SIMD_MEMBER)};
#undef NIBBLE_MEMBER
#undef NIBBLE_SIMD_MEMBER
};

}  // namespace

const Device& cpu_device() {
  static const CpuDevice device;
  return device;
}

}  // namespace nibble
