#pragma once
// Arrays of the NF4 golden values.

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/io/json/json_file.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble::test {

/// The elements of a .npy file of type T, whatever its shape; 16-bit patterns are stored as <u2, which is no DType.
template <typename T>
std::vector<T> npy_elements(const std::filesystem::path& path) {
  const std::string bytes = read_text_file(path);
  uint16_t header = 0;
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  const size_t start = 10 + header;
  std::vector<T> elements((bytes.size() - start) / sizeof(T));
  std::memcpy(elements.data(), bytes.data() + start, elements.size() * sizeof(T));
  return elements;
}

/// The elements of a tensor, which need not be aligned.
template <typename T>
std::vector<T> elements(const Tensor& tensor) {
  NIBBLE_CHECK(tensor.dtype() == dtype_of<T>::value, "dtype");
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  if (!values.empty()) std::memcpy(values.data(), tensor.raw(), tensor.bytes());
  return values;
}

/// The bits of f32 values, for comparisons that must be exact (and see the sign of zero).
inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

}  // namespace nibble::test
