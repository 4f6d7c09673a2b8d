// Memory of the host for readers: the CPU's device without what it computes with.

#include <cstring>

#include "nibble/core/ops/backend.h"

namespace nibble {

namespace {

class HostDevice final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  bool host() const override { return true; }
  void zero(std::byte* bytes, size_t count) const override { std::memset(bytes, 0, count); }
  void copy(const std::byte* from, std::byte* to, size_t count) const override { std::memcpy(to, from, count); }
  void release(const std::byte*, size_t) const override {}
  const ops::Backend& backend() const override { return none_; }

 private:
  ops::Backend none_ = {};
};

}  // namespace

const Device& cpu_device() {
  static const HostDevice device;
  return device;
}

}  // namespace nibble
