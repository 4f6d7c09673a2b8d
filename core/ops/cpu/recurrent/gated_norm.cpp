#include "nibble/core/ops/recurrent/gated_norm.h"

#include <cmath>

#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/element_type.h"
#include "nibble/core/ops/cpu/partial_sums.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/recurrent/gated_norm.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

using cpu::kGradientRows;
using cpu::PartialSums;

HWY_INLINE V silu(V x) { return hn::Mul(x, sigmoid(x)); }
HWY_INLINE V silu_derivative(V x) {
  const V s = sigmoid(x), one = splat(1);
  return hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
}

HWY_INLINE V opened(V x, const GatedNormParams& p) { return p.sigmoid_gate ? sigmoid(x) : silu(x); }
HWY_INLINE V opened_derivative(V x, const GatedNormParams& p) {
  if (!p.sigmoid_gate) return silu_derivative(x);
  const V s = sigmoid(x);
  return hn::Mul(s, hn::Sub(splat(1), s));
}

// 1 / rms of what is normed. (Loads past the end are zeros, and so are their products.)
template <bool gate_first, typename Gate>
float inverse_rms(const float* x, const Gate* gate, const GatedNormParams& p) {
  const float squares = sum_lanes(p.group, [&](int64_t i, auto lanes) HWY_ATTR {
    V in = load(x + i, lanes);
    if constexpr (gate_first) in = hn::Mul(in, silu(load(gate + i, lanes)));
    return hn::Mul(in, in);
  });
  return 1 / std::sqrt(squares / static_cast<float>(p.group) + p.eps);
}

template <bool gate_first, typename Gate>
void group_forward(const float* x, const Gate* gate, const float* w, const GatedNormParams& p, Gate* y) {
  const V inv = splat(inverse_rms<gate_first>(x, gate, p));
  for_lanes(p.group, [&](int64_t i, auto lanes) HWY_ATTR {
    const V open = hn::Mul(load(x + i, lanes), opened(load(gate + i, lanes), p));
    store(hn::Mul(hn::Mul(open, inv), load(w + i, lanes)), y + i, lanes);
  });
}

template <bool gate_first, typename Gate>
void group_backward(const Gate* dy, const float* x, const Gate* gate, const float* w, const GatedNormParams& p,
                    float* dx, Gate* dgate, float* dw) {
  const float factor = inverse_rms<gate_first>(x, gate, p);
  const float dot = sum_lanes(p.group, [&](int64_t i, auto lanes) HWY_ATTR {
    const V open = hn::Mul(load(x + i, lanes), opened(load(gate + i, lanes), p));
    return hn::Mul(hn::Mul(load(dy + i, lanes), load(w + i, lanes)), open);
  });
  const V inv = splat(factor), projection = splat(dot * factor * factor / static_cast<float>(p.group));
  for_lanes(p.group, [&](int64_t i, auto lanes) HWY_ATTR {
    const V v = load(x + i, lanes), z = load(gate + i, lanes), g = load(dy + i, lanes);
    const V open = opened(z, p), weighted = hn::Mul(g, load(w + i, lanes));
    if (dw != nullptr) {
      store(hn::MulAdd(hn::Mul(g, v), hn::Mul(open, inv), load(dw + i, lanes)), dw + i, lanes);
    }
    if constexpr (gate_first) {
      const V din = hn::Mul(inv, hn::NegMulAdd(hn::Mul(v, open), projection, weighted));
      store(hn::Mul(din, open), dx + i, lanes);
      store(hn::Mul(hn::Mul(din, v), silu_derivative(z)), dgate + i, lanes);
    } else {
      store(hn::Mul(inv, hn::NegMulAdd(v, projection, hn::Mul(weighted, open))), dx + i, lanes);
      store(hn::Mul(hn::Mul(weighted, hn::Mul(v, inv)), opened_derivative(z, p)), dgate + i, lanes);
    }
  });
}

template <bool gate_first, typename Gate>
void norm_forward(const Tensor& x, const Tensor& gate, const Tensor& w, const GatedNormParams& p, Tensor& y) {
  const int64_t groups = x.dim(1) / p.group, weights = w.numel();
  const float *from = x.data<const float>(), *factors = w.data<const float>();
  const Gate* gates = gate.data<const Gate>();
  Gate* to = y.data<Gate>();
  parallel_each(x.dim(0) * groups, 64, [&](int64_t i) {
    const int64_t at = i * p.group;
    group_forward<gate_first>(from + at, gates + at, factors + i % groups * p.group % weights, p, to + at);
  });
}

template <bool gate_first, typename Gate>
void norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, const Tensor& w, const GatedNormParams& p,
                   Tensor& dx, Tensor& dgate, Tensor& dw) {
  const int64_t width = x.dim(1), weights = w.numel();
  const float *from = x.data<const float>(), *factors = w.data<const float>();
  const Gate *grads = dy.data<const Gate>(), *gates = gate.data<const Gate>();
  float* to = dx.data<float>();
  Gate* dgates = dgate.data<Gate>();
  PartialSums sums(x.dim(0), weights, dw);
  parallel_for(x.dim(0), kGradientRows, [&](int64_t begin, int64_t end) {
    float* partial = sums.block(begin);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < width; c += p.group) {
        const int64_t at = t * width + c, weight = c % weights;
        group_backward<gate_first>(grads + at, from + at, gates + at, factors + weight, p, to + at, dgates + at,
                                   partial == nullptr ? nullptr : partial + weight);
      }
    }
  });
  sums.add_to(dw);
}

void gated_norm_forward(const Tensor& x, const Tensor& gate, const Tensor& w, const GatedNormParams& p, Tensor& y) {
  cpu::with_element(gate, [&]<typename Gate>(Gate) {
    (p.gate_first ? norm_forward<true, Gate> : norm_forward<false, Gate>)(x, gate, w, p, y);
  });
}

void gated_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, const Tensor& w,
                         const GatedNormParams& p, Tensor& dx, Tensor& dgate, Tensor& dw) {
  cpu::with_element(gate, [&]<typename Gate>(Gate) {
    (p.gate_first ? norm_backward<true, Gate> : norm_backward<false, Gate>)(dy, x, gate, w, p, dx, dgate, dw);
  });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(gated_norm_forward);
NIBBLE_SIMD_KERNEL(gated_norm_backward);

}  // namespace nibble::ops::cpu
#endif
