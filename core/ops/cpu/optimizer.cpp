#include "nibble/core/ops/optimizer.h"

#include <cmath>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kGrain = 1 << 15;

void adamw(Tensor& w, const Tensor& gradient, Tensor& m, Tensor& v, const AdamWParams& p) {
  float *weights = w.data<float>(), *first = m.data<float>(), *second = v.data<float>();
  const float* gradients = gradient.data<const float>();
  // As PyTorch: scalars are computed in double and rounded to f32 once, and the products below are in its order.
  const double correction1 = 1 - std::pow(p.beta1, static_cast<double>(p.step));
  const double correction2 = 1 - std::pow(p.beta2, static_cast<double>(p.step));
  const float decay = static_cast<float>(1 - p.lr * p.weight_decay);
  const float step = static_cast<float>(-p.lr / correction1), root = static_cast<float>(std::sqrt(correction2));
  const float share1 = static_cast<float>(1 - p.beta1), share2 = static_cast<float>(1 - p.beta2);
  const float beta2 = static_cast<float>(p.beta2), eps = static_cast<float>(p.eps), clip = p.gradient_scale;
  parallel_for(w.numel(), kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    for_lanes(end - begin, [=](int64_t i, auto lanes) HWY_ATTR {
      const int64_t at = begin + i;
      const V g = hn::Mul(load(gradients + at, lanes), splat(clip));
      const V old = load(first + at, lanes);
      const V mean = share1 < 0.5f ? hn::MulAdd(splat(share1), hn::Sub(g, old), old)
                                   : hn::MulAdd(splat(share1 - 1), hn::Sub(g, old), g);
      const V square = hn::Add(hn::Mul(load(second + at, lanes), splat(beta2)), hn::Mul(hn::Mul(splat(share2), g), g));
      const V bottom = hn::Add(hn::Div(hn::Sqrt(square), splat(root)), splat(eps));
      const V decayed = hn::Mul(load(weights + at, lanes), splat(decay));
      store(mean, first + at, lanes);
      store(square, second + at, lanes);
      store(hn::Add(decayed, hn::Div(hn::Mul(splat(step), mean), bottom)), weights + at, lanes);
    });
  });
}

void sgd(Tensor& w, const Tensor& gradient, float lr, float weight_decay, float gradient_scale) {
  float* weights = w.data<float>();
  const float* gradients = gradient.data<const float>();
  parallel_for(w.numel(), kGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    for_lanes(end - begin, [=](int64_t i, auto lanes) HWY_ATTR {
      const V old = load(weights + begin + i, lanes), g = load(gradients + begin + i, lanes);
      const V update = hn::MulAdd(splat(gradient_scale), g, hn::Mul(splat(weight_decay), old));
      store(hn::NegMulAdd(splat(lr), update, old), weights + begin + i, lanes);
    });
  });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(adamw);
NIBBLE_SIMD_KERNEL(sgd);

}  // namespace nibble::ops::cpu
#endif
