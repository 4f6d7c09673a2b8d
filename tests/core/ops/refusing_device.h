#pragma once
// A device that computes on the CPU with the CPU's bodies and refuses the host every look at its elements, as a GPU
// does: what runs on it runs on any device.

#include <atomic>

#include "nibble/core/ops/backend.h"

namespace nibble::test {

class RefusingDevice final : public Device {
 public:
  const char* name() const override { return "refusing"; }
  bool host() const override { return bodies_running_ > 0; }
  void zero(std::byte* bytes, size_t count) const override { cpu_device().zero(bytes, count); }
  void copy(const std::byte* from, std::byte* to, size_t count) const override { cpu_device().copy(from, to, count); }
  void release(const std::byte* bytes, size_t count) const override { cpu_device().release(bytes, count); }
  const ops::Backend& backend() const override;

  /// Elements may be read while it lives.
  class Body {
   public:
    explicit Body(const RefusingDevice* device) : device_(device) {
      if (device_ != nullptr) ++device_->bodies_running_;
    }
    ~Body() {
      if (device_ != nullptr) --device_->bodies_running_;
    }
    Body(const Body&) = delete;
    Body& operator=(const Body&) = delete;

   private:
    const RefusingDevice* device_;
  };

 private:
  mutable std::atomic<int> bodies_running_ = 0;
};

namespace refusals {

inline const RefusingDevice* refusing(const Tensor& x) { return dynamic_cast<const RefusingDevice*>(&x.device()); }
inline const RefusingDevice* refusing(const ops::EightBitState& x) { return refusing(x.codes); }
const RefusingDevice* refusing(const auto&) { return nullptr; }

template <auto cpu_body, typename Signature>
struct Refusing;
template <auto cpu_body, typename R, typename... Args>
struct Refusing<cpu_body, R(Args...)> {
  static R body(Args... args) {
    const RefusingDevice* device = nullptr;
    ((device = device ? device : refusing(args)), ...);
    const RefusingDevice::Body body(device);
    return (cpu_device().backend().*cpu_body)(args...);
  }
};

}  // namespace refusals

inline const ops::Backend& RefusingDevice::backend() const {
  static constexpr ops::Backend kBodies = {
#define NIBBLE_MEMBER(op) .op = refusals::Refusing<&ops::Backend::op, decltype(ops::op)>::body,
      NIBBLE_OPERATIONS(NIBBLE_MEMBER)
#undef NIBBLE_MEMBER
  };
  return kBodies;
}

}  // namespace nibble::test
