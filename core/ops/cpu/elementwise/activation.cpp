#include "nibble/core/ops/activation.h"

#include <cmath>

#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/element_type.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/elementwise/activation.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

/// f(x) and f'(x) of one activation. Written with sigmoids and erfc of what is left of 1, so that tails keep their
/// digits.
struct Identity {
  static HWY_INLINE V value(V x) { return x; }
  static HWY_INLINE V derivative(V) { return splat(1); }
};

struct Silu {
  static HWY_INLINE V value(V x) { return hn::Mul(x, sigmoid(x)); }
  static HWY_INLINE V derivative(V x) {
    const V s = sigmoid(x), one = splat(1);
    return hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
  }
};

struct GeluErf {
  static HWY_INLINE V value(V x) { return hn::Mul(x, normal_share(x, exp(half_square(x)))); }
  static HWY_INLINE V derivative(V x) {
    const V bell = exp(half_square(x));
    return hn::MulAdd(x, hn::Mul(bell, splat(0.398942280f)), normal_share(x, bell));
  }

 private:
  static HWY_INLINE V half_square(V x) { return hn::Mul(hn::Mul(x, x), splat(-0.5f)); }
  /// Share of the normal distribution below x; bell = e^(-x^2 / 2).
  static HWY_INLINE V normal_share(V x, V bell) {
    const V tail = hn::Mul(hn::Mul(splat(0.5f), bell), scaled_erfc(hn::Mul(hn::Abs(x), splat(0.707106781f))));
    return hn::IfThenElse(hn::Lt(x, hn::Zero(kF)), tail, hn::Sub(splat(1), tail));
  }
};

struct GeluTanh {
  // (1 + tanh u) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  static constexpr float kTwiceRoot = 1.595769122f, kCubic = 0.044715f;

  static HWY_INLINE V value(V x) { return hn::Mul(x, sigmoid(twice_u(x))); }
  static HWY_INLINE V derivative(V x) {
    const V s = sigmoid(twice_u(x)), one = splat(1);
    const V du = hn::Mul(splat(kTwiceRoot), hn::MulAdd(splat(3 * kCubic), hn::Mul(x, x), one));
    return hn::Mul(s, hn::MulAdd(hn::Mul(x, hn::Sub(one, s)), du, one));
  }

 private:
  static HWY_INLINE V twice_u(V x) {
    return hn::Mul(hn::Mul(splat(kTwiceRoot), x), hn::MulAdd(splat(kCubic), hn::Mul(x, x), splat(1)));
  }
};

struct GeluSigmoid {
  static constexpr float kRate = 1.702f;

  static HWY_INLINE V value(V x) { return hn::Mul(x, sigmoid(hn::Mul(splat(kRate), x))); }
  static HWY_INLINE V derivative(V x) {
    const V u = hn::Mul(splat(kRate), x), s = sigmoid(u), one = splat(1);
    return hn::Mul(s, hn::MulAdd(u, hn::Sub(one, s), one));
  }
};

/// The larger one, the smaller one; NaN where x is, which Max and Min of some instruction sets do not keep.
HWY_INLINE V at_least(V bound, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Max(bound, x));
#else
  return hn::Max(bound, x);
#endif
}
HWY_INLINE V at_most(V bound, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Min(bound, x));
#else
  return hn::Min(bound, x);
#endif
}

struct Relu {
  static HWY_INLINE V value(V x) { return at_least(hn::Zero(kF), x); }
  static HWY_INLINE V derivative(V x) { return hn::IfThenElseZero(hn::Gt(x, hn::Zero(kF)), splat(1)); }
};

struct ReluSquared {
  static HWY_INLINE V value(V x) {
    const V positive = at_least(hn::Zero(kF), x);
    return hn::Mul(positive, positive);
  }
  static HWY_INLINE V derivative(V x) { return hn::Mul(splat(2), at_least(hn::Zero(kF), x)); }
};

struct Sigmoid {
  static HWY_INLINE V value(V x) { return sigmoid(x); }
  static HWY_INLINE V derivative(V x) {
    const V s = sigmoid(x);
    return hn::Mul(s, hn::Sub(splat(1), s));
  }
};

struct Tanh {
  static HWY_INLINE V value(V x) { return tanh(x); }
  static HWY_INLINE V derivative(V x) {
    const V y = tanh(x);
    return hn::NegMulAdd(y, y, splat(1));
  }
};

constexpr int64_t kGrain = 8192;

template <typename F, typename Element>
void forward(const Tensor& x, Tensor& y) {
  const Element* from = x.data<const Element>();
  Element* to = y.data<Element>();
  parallel_lanes(x.numel(), kGrain,
                 [=](int64_t i, auto lanes) HWY_ATTR { store(F::value(load(from + i, lanes)), to + i, lanes); });
}

template <typename F, typename Element>
void backward(const Tensor& dy, const Tensor& x, Tensor& dx) {
  const Element *gradients = dy.data<const Element>(), *from = x.data<const Element>();
  Element* to = dx.data<Element>();
  parallel_lanes(x.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    store(hn::Mul(load(gradients + i, lanes), F::derivative(load(from + i, lanes))), to + i, lanes);
  });
}

template <typename F, typename Element>
void forward_gated(const Tensor& gate, const Tensor& up, Tensor& y) {
  const Element *gates = gate.data<const Element>(), *ups = up.data<const Element>();
  Element* to = y.data<Element>();
  parallel_lanes(y.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    store(hn::Mul(F::value(load(gates + i, lanes)), load(ups + i, lanes)), to + i, lanes);
  });
}

template <typename F, typename Element>
void backward_gated(const Tensor& dy, const Tensor& gate, const Tensor& up, Tensor& dgate, Tensor& dup,
                    Tensor& y_recomputed) {
  const Element *gradients = dy.data<const Element>(), *gates = gate.data<const Element>(),
                *ups = up.data<const Element>();
  Element *dgates = dgate.data<Element>(), *dups = dup.data<Element>();
  Element* recomputed = y_recomputed ? y_recomputed.data<Element>() : nullptr;
  parallel_lanes(dy.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    const V g = load(gates + i, lanes), u = load(ups + i, lanes), d = load(gradients + i, lanes);
    const V activated = F::value(g);
    store(hn::Mul(d, activated), dups + i, lanes);
    store(hn::Mul(hn::Mul(d, u), F::derivative(g)), dgates + i, lanes);
    if (recomputed != nullptr) store(hn::Mul(activated, u), recomputed + i, lanes);
  });
}

HWY_INLINE V held_within(V x, V limit) { return at_least(hn::Neg(limit), at_most(limit, x)); }

template <typename F, typename Element>
void forward_clamped(const Tensor& gate, const Tensor& up, float bound, Tensor& y) {
  const Element *gates = gate.data<const Element>(), *ups = up.data<const Element>();
  Element* to = y.data<Element>();
  parallel_lanes(y.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    const V limit = splat(bound), g = at_most(limit, load(gates + i, lanes));
    const V u = held_within(load(ups + i, lanes), limit);
    store(hn::Mul(F::value(g), hn::Add(u, splat(1))), to + i, lanes);
  });
}

template <typename F, typename Element>
void backward_clamped(const Tensor& dy, const Tensor& gate, const Tensor& up, float bound, Tensor& dgate, Tensor& dup) {
  const Element *gradients = dy.data<const Element>(), *gates = gate.data<const Element>(),
                *ups = up.data<const Element>();
  Element *dgates = dgate.data<Element>(), *dups = dup.data<Element>();
  parallel_lanes(dy.numel(), kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    const V limit = splat(bound), gate_in = load(gates + i, lanes), up_in = load(ups + i, lanes);
    const V g = at_most(limit, gate_in), u = held_within(up_in, limit), d = load(gradients + i, lanes);
    const V to_up = hn::Mul(d, F::value(g)), to_gate = hn::Mul(hn::Mul(d, hn::Add(u, splat(1))), F::derivative(g));
    store(hn::IfThenElseZero(hn::Eq(u, up_in), to_up), dups + i, lanes);
    store(hn::IfThenElseZero(hn::Eq(g, gate_in), to_gate), dgates + i, lanes);
  });
}

/// use(F(), Element()) for the activation that f names and the elements of x
template <typename Use>
void choose(Activation f, const Tensor& x, const Use& use) {
  const auto call = [&](auto function) { cpu::with_element(x, [&](auto element) { use(function, element); }); };
  switch (f) {
    case Activation::identity:
      return call(Identity());
    case Activation::silu:
      return call(Silu());
    case Activation::gelu_erf:
      return call(GeluErf());
    case Activation::gelu_tanh:
      return call(GeluTanh());
    case Activation::gelu_sigmoid:
      return call(GeluSigmoid());
    case Activation::relu:
      return call(Relu());
    case Activation::relu_squared:
      return call(ReluSquared());
    case Activation::sigmoid:
      return call(Sigmoid());
    case Activation::tanh:
      return call(Tanh());
  }
}

void activation_forward(Activation f, const Tensor& x, Tensor& y) {
  choose(f, x, [&]<typename F, typename Element>(F, Element) { forward<F, Element>(x, y); });
}

void activation_backward(Activation f, const Tensor& dy, const Tensor& x, Tensor& dx) {
  choose(f, x, [&]<typename F, typename Element>(F, Element) { backward<F, Element>(dy, x, dx); });
}

void gated_forward(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) {
  choose(f, gate, [&]<typename F, typename Element>(F, Element) { forward_gated<F, Element>(gate, up, y); });
}

void gated_backward(Activation f, const Tensor& dy, const Tensor& gate, const Tensor& up, Tensor& dgate, Tensor& dup,
                    Tensor& y_recomputed) {
  choose(f, gate, [&]<typename F, typename Element>(F, Element) {
    backward_gated<F, Element>(dy, gate, up, dgate, dup, y_recomputed);
  });
}

void clamped_gated_forward(Activation f, float limit, const Tensor& gate, const Tensor& up, Tensor& y) {
  choose(f, gate, [&]<typename F, typename Element>(F, Element) { forward_clamped<F, Element>(gate, up, limit, y); });
}

void clamped_gated_backward(Activation f, float limit, const Tensor& dy, const Tensor& gate, const Tensor& up,
                            Tensor& dgate, Tensor& dup) {
  choose(f, gate, [&]<typename F, typename Element>(F, Element) {
    backward_clamped<F, Element>(dy, gate, up, limit, dgate, dup);
  });
}

constexpr int64_t kRows = 16;

struct Moments {
  float mean, deviation;
};

template <typename Element>
HWY_INLINE Moments moments(const Element* row, int64_t width) {
  const float mean = sum_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR { return load(row + i, lanes); }) /
                     static_cast<float>(width);
  const int64_t whole = width / kLanes * kLanes;
  float squares = sum_lanes(whole, [=](int64_t i, auto lanes) HWY_ATTR {
    const V v = hn::Sub(load(row + i, lanes), splat(mean));
    return hn::Mul(v, v);
  });
  for (int64_t i = whole; i < width; ++i) {
    const float v = static_cast<float>(row[i]) - mean;
    squares += v * v;
  }
  return {mean, std::sqrt(squares / static_cast<float>(width))};
}

template <typename Element>
void forward_topk(const Tensor& x, float deviations, Tensor& y) {
  const int64_t width = x.dim(1);
  const Element* from = x.data<const Element>();
  Element* to = y.data<Element>();
  parallel_each(x.dim(0), kRows, [=](int64_t t) HWY_ATTR {
    const Element* row = from + t * width;
    const Moments m = moments(row, width);
    const V cutoff = splat(m.mean + m.deviation * deviations);
    for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR {
      store(at_least(hn::Zero(kF), hn::Sub(load(row + i, lanes), cutoff)), to + t * width + i, lanes);
    });
  });
}

template <typename Element>
void backward_topk(const Tensor& dy, const Tensor& x, float deviations, Tensor& dx) {
  const int64_t width = x.dim(1);
  const Element *gradients = dy.data<const Element>(), *from = x.data<const Element>();
  Element* to = dx.data<Element>();
  parallel_each(x.dim(0), kRows, [=](int64_t t) HWY_ATTR {
    const Element *row = from + t * width, *g = gradients + t * width;
    const Moments m = moments(row, width);
    const V cutoff = splat(m.mean + m.deviation * deviations);
    const auto passed = [=](int64_t i, auto lanes) HWY_ATTR {
      return hn::IfThenElseZero(hn::Gt(load(row + i, lanes), cutoff), load(g + i, lanes));
    };
    const float share = sum_lanes(width, passed) / static_cast<float>(width);
    const V by_mean = splat(share), mean = splat(m.mean);
    const V by_deviation = splat(m.deviation > 0 ? share * deviations / m.deviation : 0);
    for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR {
      const V centered = hn::Sub(load(row + i, lanes), mean);
      store(hn::NegMulAdd(by_deviation, centered, hn::Sub(passed(i, lanes), by_mean)), to + t * width + i, lanes);
    });
  });
}

void gaussian_topk_forward(const Tensor& x, float deviations, Tensor& y) {
  x.dtype() == DType::bf16 ? forward_topk<bf16>(x, deviations, y) : forward_topk<float>(x, deviations, y);
}

void gaussian_topk_backward(const Tensor& dy, const Tensor& x, float deviations, Tensor& dx) {
  x.dtype() == DType::bf16 ? backward_topk<bf16>(dy, x, deviations, dx) : backward_topk<float>(dy, x, deviations, dx);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(activation_forward);
NIBBLE_SIMD_KERNEL(activation_backward);
NIBBLE_SIMD_KERNEL(gated_forward);
NIBBLE_SIMD_KERNEL(gated_backward);
NIBBLE_SIMD_KERNEL(clamped_gated_forward);
NIBBLE_SIMD_KERNEL(clamped_gated_backward);
NIBBLE_SIMD_KERNEL(gaussian_topk_forward);
NIBBLE_SIMD_KERNEL(gaussian_topk_backward);

}  // namespace nibble::ops::cpu
#endif
