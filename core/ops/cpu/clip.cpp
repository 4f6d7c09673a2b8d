#include "nibble/core/ops/clip.h"

#include "nibble/core/base/parallel.h"
#include "nibble/core/tensor/bfloat16.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kGrain = int64_t{1} << 14;

template <typename Element>
void clip_elements(Element* x, int64_t count, float limit, uint8_t* inside) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float value = static_cast<float>(x[i]);
      if (inside != nullptr) inside[i] = value >= -limit && value <= limit;
      if (value < -limit) x[i] = static_cast<Element>(-limit);
      if (value > limit) x[i] = static_cast<Element>(limit);
    }
  });
}

template <typename Element>
void clear_outside(const uint8_t* inside, int64_t count, Element* dx) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (inside[i] == 0) dx[i] = static_cast<Element>(0.0f);
    }
  });
}

}  // namespace

void clip(Tensor& x, float limit, Tensor& inside) {
  uint8_t* seen = inside ? inside.data<uint8_t>() : nullptr;
  if (x.dtype() == DType::bf16) return clip_elements(x.data<bf16>(), x.numel(), limit, seen);
  clip_elements(x.data<float>(), x.numel(), limit, seen);
}

void clip_backward(const Tensor& inside, Tensor& dx) {
  const uint8_t* seen = inside.data<const uint8_t>();
  if (dx.dtype() == DType::bf16) return clear_outside(seen, dx.numel(), dx.data<bf16>());
  clear_outside(seen, dx.numel(), dx.data<float>());
}

}  // namespace nibble::ops::cpu
