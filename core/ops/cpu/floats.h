#pragma once
// Whole tensors as f32 copies, for ops that run their plain reference.

#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

inline std::vector<float> to_floats(const Tensor& x) {
  std::vector<float> values(static_cast<size_t>(x.numel()));
  if (x.dtype() == DType::f32) {
    const std::span<const float> from = x.span<const float>();
    std::copy(from.begin(), from.end(), values.begin());
  } else {
    const bf16* from = x.data<const bf16>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from[i]);
  }
  return values;
}

inline void from_floats(const std::vector<float>& values, Tensor& x) {
  if (x.dtype() == DType::f32) {
    std::copy(values.begin(), values.end(), x.data<float>());
  } else {
    bf16* to = x.data<bf16>();
    for (size_t i = 0; i < values.size(); ++i) to[i] = bf16(values[i]);
  }
}

}  // namespace nibble::ops
