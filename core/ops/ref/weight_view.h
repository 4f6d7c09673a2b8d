#pragma once
// Plain reference of ops/weight_view.h: the words of FourBitMatrix, element by element.

#include <cmath>
#include <cstring>

#include "nibble/core/ops/weight_view.h"

namespace nibble::ops::ref {

/// The scale of block `block` of the stored matrix.
inline float block_scale(const FourBitMatrix& m, int64_t block) {
  const auto read = [](const Tensor& tensor, int64_t index) {
    float value;
    std::memcpy(&value, tensor.raw() + index * 4, sizeof value);
    return value;
  };
  if (m.scaled_by_exponents()) return std::ldexp(1.0f, static_cast<int>(m.exponents.raw()[block]) - 127);
  if (!m.double_quantized()) return read(m.absmax, block);
  const float scale = read(m.nested_map, static_cast<int64_t>(m.absmax_codes.raw()[block])) *
                      read(m.nested_absmax, block / m.nested_block_size);
  return scale + m.nested_offset;
}

/// W[row, col], before it is rounded for products in bf16.
inline float element(const FourBitMatrix& m, int64_t row, int64_t col) {
  const int64_t i = (m.first_row + row) * m.in_features() + col;
  const auto byte = static_cast<uint8_t>(m.packed.raw()[i / 2]);
  return m.table[static_cast<size_t>((i % 2 == 0) != m.low_first ? byte >> 4 : byte & 15)] *
         block_scale(m, i / m.block_size);
}

}  // namespace nibble::ops::ref
