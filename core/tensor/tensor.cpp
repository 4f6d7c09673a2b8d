#include "nibble/core/tensor/tensor.h"

namespace nibble {

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) {
    NIBBLE_CHECK(size >= 0 && !__builtin_mul_overflow(count, size, &count), "shape " + to_string(shape));
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Tensor Tensor::planned(Shape shape, DType dtype) {
  Tensor result;
  result.shape_ = std::move(shape);
  result.dtype_ = dtype;
  result.defined_ = true;
  return result;
}

Tensor Tensor::empty(MemoryPool& pool, Shape shape, DType dtype, const std::string& what) {
  Tensor result = planned(std::move(shape), dtype);
  result.storage_ = Storage::owned(pool, result.bytes(), what);
  return result;
}

Tensor Tensor::zeros(MemoryPool& pool, Shape shape, DType dtype, const std::string& what) {
  Tensor result = empty(pool, std::move(shape), dtype, what);
  result.zero();
  return result;
}

Tensor Tensor::view(std::shared_ptr<Storage> storage, size_t offset, Shape shape, DType dtype) {
  Tensor result = planned(std::move(shape), dtype);
  NIBBLE_CHECK(offset <= storage->size() && result.bytes() <= storage->size() - offset,
               "view past the end of its storage");
  result.storage_ = std::move(storage);
  result.offset_ = offset;
  return result;
}

bool Tensor::aligned() const { return reinterpret_cast<uintptr_t>(address()) % dtype_size(dtype_) == 0; }

std::byte* Tensor::host_address() const {
  NIBBLE_CHECK(device().host(), std::string("the host cannot read elements on device ") + device().name());
  return address();
}

const std::byte* Tensor::raw() const {
  NIBBLE_CHECK(storage_ != nullptr, "tensor has no bytes");
  return host_address();
}

std::byte* Tensor::mutable_raw() const {
  NIBBLE_CHECK(writable(), "tensor is not writable");
  return host_address();
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  NIBBLE_CHECK(!shape_.empty() && 0 <= begin && begin <= end && end <= shape_[0], "rows of " + to_string(shape_));
  Tensor part = *this;
  part.shape_[0] = end - begin;
  const size_t row_bytes = shape_[0] == 0 ? 0 : bytes() / static_cast<size_t>(shape_[0]);
  part.offset_ += static_cast<size_t>(begin) * row_bytes;
  return part;
}

Tensor Tensor::reshape(Shape shape) const {
  NIBBLE_CHECK(element_count(shape) == numel(), to_string(shape_) + " as " + to_string(shape));
  Tensor other = *this;
  other.shape_ = std::move(shape);
  return other;
}

Tensor Tensor::clone(MemoryPool& pool) const {
  Tensor copy = empty(pool, shape_, dtype_);
  NIBBLE_CHECK(storage_ != nullptr, "tensor has no bytes");
  const Device& of = device().host() ? pool.device() : device();
  if (bytes() > 0) of.copy(address(), copy.address(), bytes());
  return copy;
}

void Tensor::zero() {
  NIBBLE_CHECK(writable(), "tensor is not writable");
  if (bytes() > 0) device().zero(address(), bytes());
}

}  // namespace nibble
