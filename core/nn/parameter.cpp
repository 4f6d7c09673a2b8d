#include "nibble/core/nn/parameter.h"

#include "nibble/core/ops/elementwise.h"

namespace nibble {

void Parameter::make_trainable(MemoryPool& pool) {
  if (value.dtype() != DType::f32 || !value.writable()) {
    Tensor copy = Tensor::empty(pool, value.shape(), DType::f32, name);
    ops::cast(value, copy);
    value = copy;
  }
  const MemoryPool::Use use(pool, MemoryUse::gradients);
  gradient = Tensor::zeros(pool, value.shape(), DType::f32, name + " gradient");
  trainable = true;
}

}  // namespace nibble
