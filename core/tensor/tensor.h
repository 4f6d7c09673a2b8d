#pragma once
// Tensor: a small value that names a row-major block of elements. No strides, no broadcasting, no autograd.

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/tensor/dtype.h"
#include "nibble/core/tensor/storage.h"

namespace nibble {

/// Sizes of the dimensions, outermost first. [] is a scalar with one element.
using Shape = std::vector<int64_t>;

/// Number of elements of `shape`.
int64_t element_count(const Shape& shape);

/// "[32, 64]"
std::string to_string(const Shape& shape);

/// Contiguous, row-major, cheap to copy (copies share the bytes). A *planned* tensor has dtype and shape but no bytes
/// yet; a default-constructed one is undefined (an optional that is absent).
class Tensor {
 public:
  Tensor() = default;

  /// Undefined elements from `pool`; `what` names the tensor when memory runs out.
  static Tensor empty(MemoryPool& pool, Shape shape, DType dtype, const std::string& what = "tensor");
  static Tensor zeros(MemoryPool& pool, Shape shape, DType dtype, const std::string& what = "tensor");
  /// A copy of `values`, whose size must be the number of elements of `shape`.
  template <typename T>
  static Tensor from(MemoryPool& pool, Shape shape, std::span<const T> values) {
    Tensor result = empty(pool, std::move(shape), dtype_of<T>::value);
    NIBBLE_CHECK(static_cast<int64_t>(values.size()) == result.numel(), "number of values");
    result.device().copy(reinterpret_cast<const std::byte*>(values.data()), result.address(), result.bytes());
    return result;
  }
  /// Existing bytes, starting at byte `offset` of `storage`; the address need not be aligned to the element size
  /// (checkpoints of some writers are not): see aligned().
  static Tensor view(std::shared_ptr<Storage> storage, size_t offset, Shape shape, DType dtype);
  static Tensor planned(Shape shape, DType dtype);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(size_t i) const { return shape_.at(i); }
  size_t rank() const { return shape_.size(); }
  int64_t numel() const { return element_count(shape_); }
  size_t bytes() const { return static_cast<size_t>(numel()) * dtype_size(dtype_); }
  /// Where its bytes are; the CPU's while it has none.
  const Device& device() const { return storage_ ? storage_->device() : cpu_device(); }

  bool defined() const { return defined_; }
  explicit operator bool() const { return defined_; }
  bool has_bytes() const { return storage_ != nullptr; }
  bool writable() const { return storage_ != nullptr && storage_->writable(); }
  /// Whether the first element lies at a multiple of the element size.
  bool aligned() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// First element; checks the dtype, that the host may read it (Device::host), and for non-const T that the bytes may
  /// be written. Outside op bodies for what the host has to know: token ids, positions, files, quantizing.
  template <typename T>
  T* data() const {
    using Element = std::remove_const_t<T>;
    NIBBLE_CHECK(dtype_ == dtype_of<Element>::value, "tensor has dtype " + std::string(dtype_name(dtype_)));
    NIBBLE_CHECK(storage_ != nullptr, "tensor has no bytes");
    NIBBLE_CHECK(std::is_const_v<T> || storage_->writable(), "tensor is mapped read-only");
    return reinterpret_cast<T*>(host_address());
  }
  template <typename T>
  std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(numel())};
  }
  const std::byte* raw() const;
  std::byte* mutable_raw() const;
  /// Where the first element lies in the memory of its device: for op bodies and communicators.
  std::byte* address() const { return storage_->data() + offset_; }

  /// Rows [begin, end) of the first dimension; shares the bytes.
  Tensor rows(int64_t begin, int64_t end) const;
  /// The same bytes under another shape with the same number of elements.
  Tensor reshape(Shape shape) const;
  /// Deep copy, aligned and writable, on the pool's device.
  Tensor clone(MemoryPool& pool) const;
  /// The tensor itself if it is on the pool's device, else a copy there.
  Tensor to(MemoryPool& pool) const { return &device() == &pool.device() ? *this : clone(pool); }
  /// Sets all bytes to zero.
  void zero();

 private:
  std::byte* host_address() const;

  DType dtype_ = DType::f32;
  bool defined_ = false;
  Shape shape_;
  std::shared_ptr<Storage> storage_;
  size_t offset_ = 0;
};

}  // namespace nibble
