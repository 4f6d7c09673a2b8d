#include "nibble/core/ops/optimizer.h"

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/ref/optimizer.h"

namespace nibble::ops {

constexpr int64_t kGrain = 1 << 15;

void adamw(Tensor& w, const Tensor& gradient, Tensor& m, Tensor& v, const AdamWParams& params) {
  float* weights = w.data<float>();
  const float* gradients = gradient.data<const float>();
  float *first = m.data<float>(), *second = v.data<float>();
  parallel_for(w.numel(), kGrain, [&](int64_t begin, int64_t end) {
    ref::adamw(weights + begin, gradients + begin, first + begin, second + begin, end - begin, params);
  });
}

void sgd(Tensor& w, const Tensor& gradient, float lr, float weight_decay, float gradient_scale) {
  float* weights = w.data<float>();
  const float* gradients = gradient.data<const float>();
  parallel_for(w.numel(), kGrain, [&](int64_t begin, int64_t end) {
    ref::sgd(weights + begin, gradients + begin, end - begin, lr, weight_decay, gradient_scale);
  });
}

}  // namespace nibble::ops
