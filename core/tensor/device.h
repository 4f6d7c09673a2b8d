#pragma once
// Where tensors live, and whose op bodies compute on them.

#include <cstddef>

namespace nibble {

namespace ops {
struct Backend;
}

/// A kind of memory with the op bodies that compute on it (core/ops/backend.h). An op asks its tensors' device for its
/// body, so one Decoder runs on all of them. The CPU is one (cpu_device()), meta another, which has shapes and no bytes
/// (core/ops/meta/meta_device.h); a program may bring others.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// "cpu", "meta", ...
  virtual const char* name() const = 0;
  /// Whether the host may read and write elements. Where it may not, Tensor::data() and raw() throw.
  virtual bool host() const = 0;
  /// Whether tensors have bytes at all.
  virtual bool has_bytes() const { return true; }
  virtual void zero(std::byte* bytes, size_t count) const = 0;
  /// Either side may be the host's.
  virtual void copy(const std::byte* from, std::byte* to, size_t count) const = 0;
  virtual const ops::Backend& backend() const = 0;
  /// Read-only bytes that came out of a file's map may leave memory until they are used again; a wish.
  virtual void release(const std::byte* bytes, size_t count) const = 0;
  /// Such bytes are read whole, so that large pages serve them best; a wish.
  virtual void prefer_huge_pages(const std::byte* /*bytes*/, size_t /*count*/) const {}

 protected:
  Device() = default;
};

/// The host's memory and its cores.
const Device& cpu_device();

}  // namespace nibble
