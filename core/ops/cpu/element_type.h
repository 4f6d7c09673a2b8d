#pragma once

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops::cpu {

/// use(bf16()) or use(float()): a value of the type of x's elements.
template <typename Use>
void with_element(const Tensor& x, const Use& use) {
  x.dtype() == DType::bf16 ? use(bf16()) : use(float());
}

}  // namespace nibble::ops::cpu
