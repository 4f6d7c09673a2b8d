#include "nibble/core/ops/norm.h"

#include <cmath>

#include "nibble/core/ops/cpu/element_type.h"
#include "nibble/core/ops/cpu/partial_sums.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

template <typename Out>
void rms_rows(const float* x, const float* w, int64_t rows, int64_t width, float eps, float weight_offset, Out* y,
              float* inv_rms) {
  const V offset = splat(weight_offset);
  for (int64_t t = 0; t < rows; ++t, x += width, y += width) {
    const float squares = sum_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V v = load(x + i, lanes);
      return hn::Mul(v, v);
    });
    inv_rms[t] = 1 / std::sqrt(squares / static_cast<float>(width) + eps);
    const V factor = splat(inv_rms[t]);
    for_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V normed = hn::Mul(load(x + i, lanes), factor);
      store(hn::Mul(normed, hn::Add(offset, load(w + i, lanes))), y + i, lanes);
    });
  }
}

/// dw [D] += over these rows, unless null.
template <typename In>
void rms_rows_backward(const In* dy, const float* x, const float* w, int64_t rows, int64_t width, float weight_offset,
                       const float* inv_rms, float* dx, float* dw) {
  const V offset = splat(weight_offset);
  for (int64_t t = 0; t < rows; ++t, dy += width, x += width, dx += width) {
    const float dot = sum_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      return hn::Mul(hn::Mul(load(dy + i, lanes), hn::Add(offset, load(w + i, lanes))), load(x + i, lanes));
    });
    const V s = splat(inv_rms[t]), projection = splat(dot * inv_rms[t] * inv_rms[t] / static_cast<float>(width));
    for_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V g = load(dy + i, lanes), v = load(x + i, lanes);
      const V inner = hn::NegMulAdd(v, projection, hn::Mul(g, hn::Add(offset, load(w + i, lanes))));
      store(hn::MulAdd(s, inner, load(dx + i, lanes)), dx + i, lanes);
      if (dw != nullptr) store(hn::MulAdd(hn::Mul(g, v), s, load(dw + i, lanes)), dw + i, lanes);
    });
  }
}

template <typename Out>
void layer_rows(const float* x, const float* w, const float* b, int64_t rows, int64_t width, float eps, Out* y,
                float* mean, float* inv_std) {
  for (int64_t t = 0; t < rows; ++t, x += width, y += width) {
    mean[t] = sum_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR { return load(x + i, lanes); }) /
              static_cast<float>(width);
    const V center = splat(mean[t]);
    float squares = sum_lanes(width / kLanes * kLanes, [&](int64_t i, auto lanes) HWY_ATTR {
      const V v = hn::Sub(load(x + i, lanes), center);
      return hn::Mul(v, v);
    });
    for (int64_t i = width / kLanes * kLanes; i < width; ++i) squares += (x[i] - mean[t]) * (x[i] - mean[t]);
    inv_std[t] = 1 / std::sqrt(squares / static_cast<float>(width) + eps);
    const V factor = splat(inv_std[t]);
    for_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V normed = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
      const V shift = b == nullptr ? hn::Zero(kF) : load(b + i, lanes);
      store(hn::MulAdd(normed, load(w + i, lanes), shift), y + i, lanes);
    });
  }
}

template <typename In>
void layer_rows_backward(const In* dy, const float* x, const float* w, int64_t rows, int64_t width, const float* mean,
                         const float* inv_std, float* dx, float* dw, float* db) {
  const float share = 1 / static_cast<float>(width);
  for (int64_t t = 0; t < rows; ++t, dy += width, x += width, dx += width) {
    const V center = splat(mean[t]), factor = splat(inv_std[t]);
    const float sum = sum_lanes(
        width, [&](int64_t i, auto lanes) HWY_ATTR { return hn::Mul(load(dy + i, lanes), load(w + i, lanes)); });
    const float dot = sum_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V normed = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
      return hn::Mul(hn::Mul(load(dy + i, lanes), load(w + i, lanes)), normed);  // 0 past the end: w is 0 there
    });
    const V mean_gradient = splat(sum * share), projection = splat(dot * share);
    for_lanes(width, [&](int64_t i, auto lanes) HWY_ATTR {
      const V g = load(dy + i, lanes);
      const V normed = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
      const V inner = hn::Sub(hn::Mul(g, load(w + i, lanes)), hn::MulAdd(normed, projection, mean_gradient));
      store(hn::MulAdd(factor, inner, load(dx + i, lanes)), dx + i, lanes);
      if (dw != nullptr) store(hn::MulAdd(g, normed, load(dw + i, lanes)), dw + i, lanes);
      if (db != nullptr) store(hn::Add(g, load(db + i, lanes)), db + i, lanes);
    });
  }
}

constexpr int64_t kRowGrain = 16;
using cpu::kGradientRows;
using cpu::PartialSums;

void rms_norm_forward(const Tensor& x, const Tensor& w, float eps, float weight_offset, Tensor& y, Tensor& inv_rms) {
  const int64_t width = x.dim(1);
  const float *from = x.data<const float>(), *weights = w.data<const float>();
  float* factors = inv_rms.data<float>();
  parallel_for(x.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    const float* rows = from + begin * width;
    cpu::with_element(y, [&]<typename Out>(Out) {
      rms_rows(rows, weights, end - begin, width, eps, weight_offset, y.data<Out>() + begin * width, factors + begin);
    });
  });
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, float weight_offset, const Tensor& inv_rms,
                       Tensor& dx, Tensor& dw) {
  const int64_t width = x.dim(1);
  PartialSums weight_sums(x.dim(0), width, dw);
  const float *from = x.data<const float>(), *weights = w.data<const float>(), *factors = inv_rms.data<const float>();
  float* to = dx.data<float>();
  parallel_for(x.dim(0), kGradientRows, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    float* partial = weight_sums.block(begin);
    cpu::with_element(dy, [&]<typename In>(In) {
      rms_rows_backward(dy.data<const In>() + at, from + at, weights, end - begin, width, weight_offset,
                        factors + begin, to + at, partial);
    });
  });
  weight_sums.add_to(dw);
}

void layer_norm_forward(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y, Tensor& mean,
                        Tensor& inv_std) {
  const int64_t width = x.dim(1);
  const float *from = x.data<const float>(), *weights = w.data<const float>();
  const float* shifts = b ? b.data<const float>() : nullptr;
  float *means = mean.data<float>(), *factors = inv_std.data<float>();
  parallel_for(x.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    const float* rows = from + begin * width;
    cpu::with_element(y, [&]<typename Out>(Out) {
      layer_rows(rows, weights, shifts, end - begin, width, eps, y.data<Out>() + begin * width, means + begin,
                 factors + begin);
    });
  });
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& inv_std,
                         Tensor& dx, Tensor& dw, Tensor& db) {
  const int64_t width = x.dim(1);
  PartialSums weight_sums(x.dim(0), width, dw), bias_sums(x.dim(0), width, db);
  const float *from = x.data<const float>(), *weights = w.data<const float>();
  const float *means = mean.data<const float>(), *factors = inv_std.data<const float>();
  float* to = dx.data<float>();
  parallel_for(x.dim(0), kGradientRows, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width;
    float *dws = weight_sums.block(begin), *dbs = bias_sums.block(begin);
    cpu::with_element(dy, [&]<typename In>(In) {
      layer_rows_backward(dy.data<const In>() + at, from + at, weights, end - begin, width, means + begin,
                          factors + begin, to + at, dws, dbs);
    });
  });
  weight_sums.add_to(dw);
  bias_sums.add_to(db);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(rms_norm_forward);
NIBBLE_SIMD_KERNEL(rms_norm_backward);
NIBBLE_SIMD_KERNEL(layer_norm_forward);
NIBBLE_SIMD_KERNEL(layer_norm_backward);

}  // namespace nibble::ops::cpu
#endif
