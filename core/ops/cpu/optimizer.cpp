#include "nibble/core/ops/optimizer.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"
#include "nibble/core/ops/dynamic_map.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kGrain = 1 << 15, kBlocksAtOnce = 64;

/// The scalars of one update, computed in double and rounded to f32 once, as PyTorch does.
struct Update {
  explicit Update(const AdamWParams& p)
      : decay(static_cast<float>(1 - p.lr * p.weight_decay)),
        step(static_cast<float>(-p.lr / (1 - std::pow(p.beta1, static_cast<double>(p.step))))),
        root(static_cast<float>(std::sqrt(1 - std::pow(p.beta2, static_cast<double>(p.step))))),
        beta1(static_cast<float>(p.beta1)),
        beta2(static_cast<float>(p.beta2)),
        share1(static_cast<float>(1 - p.beta1)),
        share2(static_cast<float>(1 - p.beta2)),
        eps(static_cast<float>(p.eps)),
        clip(p.gradient_scale) {}
  float decay, step, root, beta1, beta2, share1, share2, eps, clip;
};

/// The mean of gradients as PyTorch rounds it, torch.lerp, and as bitsandbytes does.
struct LerpMean {
  static HWY_INLINE V value(const Update& u, V g, V old) {
    return u.share1 < 0.5f ? hn::MulAdd(splat(u.share1), hn::Sub(g, old), old)
                           : hn::MulAdd(splat(u.share1 - 1), hn::Sub(g, old), g);
  }
};

struct SharesMean {
  static HWY_INLINE V value(const Update& u, V g, V old) {
    return hn::MulAdd(splat(u.share1), g, hn::Mul(old, splat(u.beta1)));
  }
};

/// The products are in PyTorch's order.
template <typename Mean>
void update_lanes(const Update& u, const float* gradient, int64_t count, float* w, float* m, float* v) {
  for_lanes(count, [=](int64_t i, auto lanes) HWY_ATTR {
    const V g = hn::Mul(load(gradient + i, lanes), splat(u.clip));
    const V mean = Mean::value(u, g, load(m + i, lanes));
    const V square = hn::Add(hn::Mul(load(v + i, lanes), splat(u.beta2)), hn::Mul(hn::Mul(splat(u.share2), g), g));
    const V bottom = hn::Add(hn::Div(hn::Sqrt(square), splat(u.root)), splat(u.eps));
    const V decayed = hn::Mul(load(w + i, lanes), splat(u.decay));
    store(mean, m + i, lanes);
    store(square, v + i, lanes);
    store(hn::Add(decayed, hn::Div(hn::Mul(splat(u.step), mean), bottom)), w + i, lanes);
  });
}

void adamw(Tensor& w, const Tensor& gradient, Tensor& m, Tensor& v, const AdamWParams& params) {
  float *weights = w.data<float>(), *first = m.data<float>(), *second = v.data<float>();
  const float* gradients = gradient.data<const float>();
  const Update u(params);
  parallel_for(w.numel(), kGrain, [=](int64_t begin, int64_t end) {
    update_lanes<LerpMean>(u, gradients + begin, end - begin, weights + begin, first + begin, second + begin);
  });
}

/// One block of a state in f32.
void expand(const uint8_t* codes, int64_t count, const std::array<float, 256>& map, float absmax, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = map[codes[i]] * absmax;
}

void contract(const float* values, int64_t count, const DynamicCodes& rule, uint8_t* codes, float* absmax) {
  V largest = hn::Zero(kF);
  for_lanes(count,
            [&](int64_t i, auto lanes) HWY_ATTR { largest = hn::Max(largest, hn::Abs(load(values + i, lanes))); });
  *absmax = hn::GetLane(hn::MaxOfLanes(kF, largest));
  const float inverse = *absmax > 0 ? 1 / *absmax : 0.0f;
  for (int64_t i = 0; i < count; ++i) codes[i] = rule.nearest(std::clamp(values[i] * inverse, -1.0f, 1.0f));
}

void adamw8bit(Tensor& w, const Tensor& gradient, EightBitState& m, EightBitState& v, const AdamWParams& params) {
  const Update u(params);
  const std::array<float, 256>&first_map = dynamic_map(), &second_map = unsigned_dynamic_map();
  const DynamicCodes &first_rule = dynamic_codes(), &second_rule = unsigned_dynamic_codes();
  float *weights = w.data<float>(), *first_absmax = m.absmax.data<float>(), *second_absmax = v.absmax.data<float>();
  uint8_t *first_codes = m.codes.data<uint8_t>(), *second_codes = v.codes.data<uint8_t>();
  const float* gradients = gradient.data<const float>();
  parallel_for(w.numel(), kBlocksAtOnce * kEightBitBlock, [&](int64_t begin, int64_t end) {
    float first[kEightBitBlock], second[kEightBitBlock];
    for (; begin < end; begin += kEightBitBlock) {
      const int64_t count = std::min(kEightBitBlock, end - begin), block = begin / kEightBitBlock;
      expand(first_codes + begin, count, first_map, first_absmax[block], first);
      expand(second_codes + begin, count, second_map, second_absmax[block], second);
      update_lanes<SharesMean>(u, gradients + begin, count, weights + begin, first, second);
      contract(first, count, first_rule, first_codes + begin, first_absmax + block);
      contract(second, count, second_rule, second_codes + begin, second_absmax + block);
    }
  });
}

void sgd(Tensor& w, const Tensor& gradient, float lr, float weight_decay, float gradient_scale) {
  float* weights = w.data<float>();
  const float* gradients = gradient.data<const float>();
  parallel_lanes(w.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    const V old = load(weights + i, lanes), g = load(gradients + i, lanes);
    const V update = hn::MulAdd(splat(gradient_scale), g, hn::Mul(splat(weight_decay), old));
    store(hn::NegMulAdd(splat(lr), update, old), weights + i, lanes);
  });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(adamw);
NIBBLE_SIMD_KERNEL(adamw8bit);
NIBBLE_SIMD_KERNEL(sgd);

}  // namespace nibble::ops::cpu
#endif
