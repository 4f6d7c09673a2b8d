#include <cmath>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/elementwise/xielu.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kGrain = 1 << 13;

/// e^x - 1 - x for x <= 0: near 0 the series, where the difference would keep no digits.
HWY_INLINE V exp_less_line(V x) {
  V series = splat(1.0f / 5040);
  for (const float next : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f}) {
    series = hn::MulAdd(series, x, splat(next));
  }
  const V direct = hn::Sub(hn::Sub(exp(x), splat(1)), x);
  return hn::IfThenElse(hn::Gt(x, splat(-0.5f)), hn::Mul(hn::Mul(x, x), series), direct);
}

struct Alphas {
  Alphas(const Tensor& p, const Tensor& n)
      : positive(std::log1p(std::exp(p.data<const float>()[0]))),
        negative(0.5f + std::log1p(std::exp(n.data<const float>()[0]))) {}
  float positive, negative;
};

template <typename Element>
void forward(const Tensor& x, const Alphas& alphas, Tensor& y) {
  const Element* from = x.data<const Element>();
  Element* to = y.data<Element>();
  parallel_lanes(x.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    const V v = load(from + i, lanes);
    const V below = hn::Mul(splat(alphas.negative), exp_less_line(hn::Min(v, splat(0))));
    const V above = hn::Mul(splat(alphas.positive), hn::Mul(v, v));
    const V bent = hn::IfThenElse(hn::Gt(v, splat(0)), above, below);
    store(hn::MulAdd(v, splat(0.5f), bent), to + i, lanes);
  });
}

template <typename Element>
void backward(const Tensor& dy, const Tensor& x, const Alphas& alphas, Tensor& dx, double& dp, double& dn) {
  struct Sums {
    double positive = 0, negative = 0;
  };
  const Element *grads = dy.data<const Element>(), *from = x.data<const Element>();
  Element* to = dx.data<Element>();
  std::vector<Sums> chunks(static_cast<size_t>((x.numel() + kGrain - 1) / kGrain));
  parallel_for(x.numel(), kGrain, [&, from, grads, to](int64_t begin, int64_t end) HWY_ATTR {
    V positive = splat(0), negative = splat(0);
    for_lanes(end - begin, [&](int64_t i, auto lanes) HWY_ATTR {
      const V v = load(from + begin + i, lanes), d = load(grads + begin + i, lanes);
      const auto up = hn::Gt(v, splat(0));
      const V low = hn::Min(v, splat(0)), bent = exp_less_line(low);
      positive = hn::Add(positive, hn::IfThenElseZero(up, hn::Mul(d, hn::Mul(v, v))));
      negative = hn::MulAdd(d, bent, negative);  // 0 where v > 0
      const V above = hn::Mul(splat(2 * alphas.positive), v),
              below = hn::Mul(splat(alphas.negative), hn::Add(bent, low));
      store(hn::Mul(d, hn::Add(hn::IfThenElse(up, above, below), splat(0.5f))), to + begin + i, lanes);
    });
    chunks[static_cast<size_t>(begin / kGrain)] = {static_cast<double>(hn::GetLane(hn::SumOfLanes(kF, positive))),
                                                   static_cast<double>(hn::GetLane(hn::SumOfLanes(kF, negative)))};
  });
  for (const Sums& chunk : chunks) {
    dp += chunk.positive;
    dn += chunk.negative;
  }
}

void xielu_forward(const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n, Tensor& y) {
  const Alphas alphas(alpha_p, alpha_n);
  x.dtype() == DType::bf16 ? forward<bf16>(x, alphas, y) : forward<float>(x, alphas, y);
}

void xielu_backward(const Tensor& dy, const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n, Tensor& dx,
                    Tensor& dalpha_p, Tensor& dalpha_n) {
  const Alphas alphas(alpha_p, alpha_n);
  double dp = 0, dn = 0;
  x.dtype() == DType::bf16 ? backward<bf16>(dy, x, alphas, dx, dp, dn) : backward<float>(dy, x, alphas, dx, dp, dn);
  const auto add = [](double sum, const Tensor& alpha, Tensor& to) {
    if (to) to.data<float>()[0] += static_cast<float>(sum / (1 + std::exp(-alpha.data<const float>()[0])));
  };
  add(dp, alpha_p, dalpha_p);
  add(dn, alpha_n, dalpha_n);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(xielu_forward);
NIBBLE_SIMD_KERNEL(xielu_backward);

}  // namespace nibble::ops::cpu
#endif
