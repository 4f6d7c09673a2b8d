#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "nibble/core/ops/backend.h"

namespace nibble {

namespace {

class CpuDevice final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  bool host() const override { return true; }
  void zero(std::byte* bytes, size_t count) const override { std::memset(bytes, 0, count); }
  void copy(const std::byte* from, std::byte* to, size_t count) const override { std::memcpy(to, from, count); }
  void release(const std::byte* bytes, size_t count) const override {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(bytes), end = begin + count;
    const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
  const ops::Backend& backend() const override { return bodies_; }

 private:
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
