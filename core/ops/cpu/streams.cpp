#include "nibble/core/ops/residual.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/streams.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kRows = 16;
constexpr float kLeastMeanSquare = 1e-5f;

struct Streams {
  Streams(const Tensor& coefficients, const Tensor& source, const Tensor& result)
      : tokens(coefficients.dim(0)), width(source.dim(1)), from(source.dim(0) / tokens), to(result.dim(0) / tokens) {}
  int64_t tokens, width, from, to;
};

void mix_streams_forward(const Tensor& x, const Tensor& coefficients, Tensor& y) {
  const Streams s(coefficients, x, y);
  const float *sources = x.data<const float>(), *weights = coefficients.data<const float>();
  float* sums = y.data<float>();
  parallel_each(s.tokens, kRows, [=](int64_t t) HWY_ATTR {
    for (int64_t b = 0; b < s.to; ++b) {
      const float* own = weights + (t * s.to + b) * s.from;
      float* row = sums + (b * s.tokens + t) * s.width;
      for_lanes(s.width, [=](int64_t i, auto lanes) HWY_ATTR {
        V sum = load(row + i, lanes);
        for (int64_t a = 0; a < s.from; ++a) {
          sum = hn::MulAdd(splat(own[a]), load(sources + (a * s.tokens + t) * s.width + i, lanes), sum);
        }
        store(sum, row + i, lanes);
      });
    }
  });
}

void mix_streams_backward(const Tensor& dy, const Tensor& x, const Tensor& coefficients, Tensor& dx,
                          Tensor& dcoefficients) {
  const Streams s(coefficients, x, dy);
  const float *sources = x.data<const float>(), *weights = coefficients.data<const float>(),
              *gradients = dy.data<const float>();
  float *dsources = dx.data<float>(), *dweights = dcoefficients.data<float>();
  parallel_each(s.tokens, kRows, [=](int64_t t) HWY_ATTR {
    for (int64_t a = 0; a < s.from; ++a) {
      const int64_t at = (a * s.tokens + t) * s.width;
      for_lanes(s.width, [=](int64_t i, auto lanes) HWY_ATTR {
        V sum = load(dsources + at + i, lanes);
        for (int64_t b = 0; b < s.to; ++b) {
          const V g = load(gradients + (b * s.tokens + t) * s.width + i, lanes);
          sum = hn::MulAdd(splat(weights[(t * s.to + b) * s.from + a]), g, sum);
        }
        store(sum, dsources + at + i, lanes);
      });
      for (int64_t b = 0; b < s.to; ++b) {
        const float *g = gradients + (b * s.tokens + t) * s.width, *v = sources + at;
        dweights[(t * s.to + b) * s.from + a] = sum_lanes(
            s.width, [=](int64_t i, auto lanes) HWY_ATTR { return hn::Mul(load(g + i, lanes), load(v + i, lanes)); });
      }
    }
  });
}

HWY_INLINE float product(const float* a, const float* b, int64_t width) {
  return sum_lanes(width,
                   [=](int64_t i, auto lanes) HWY_ATTR { return hn::Mul(load(a + i, lanes), load(b + i, lanes)); });
}

HWY_INLINE float mean_square(const float* row, int64_t width) {
  return product(row, row, width) / static_cast<float>(width);
}

void match_rms_forward(const Tensor& x, const Tensor& like, Tensor& y) {
  const int64_t width = x.dim(1);
  const float *from = x.data<const float>(), *likes = like.data<const float>();
  float* to = y.data<float>();
  parallel_each(x.dim(0), kRows, [=](int64_t t) HWY_ATTR {
    const float* row = from + t * width;
    const float clamped_square = std::max(mean_square(row, width), kLeastMeanSquare);
    const V factor = splat(std::sqrt(mean_square(likes + t * width, width) / clamped_square));
    for_lanes(width, [=](int64_t i, auto lanes)
                         HWY_ATTR { store(hn::Mul(load(row + i, lanes), factor), to + t * width + i, lanes); });
  });
}

void match_rms_backward(const Tensor& dy, const Tensor& x, const Tensor& like, Tensor& dx, Tensor& dlike) {
  const int64_t width = x.dim(1);
  const float *gradients = dy.data<const float>(), *from = x.data<const float>(), *likes = like.data<const float>();
  float *to = dx.data<float>(), *to_like = dlike.data<float>();
  parallel_each(x.dim(0), kRows, [=](int64_t t) HWY_ATTR {
    const int64_t at = t * width;
    const float square = mean_square(from + at, width), like_square = mean_square(likes + at, width);
    const float clamped_square = std::max(square, kLeastMeanSquare), factor = std::sqrt(like_square / clamped_square);
    const float share = product(gradients + at, from + at, width) * factor / static_cast<float>(width);
    const V scale = splat(factor), by_x = splat(square >= kLeastMeanSquare ? share / clamped_square : 0),
            by_like = splat(like_square > 0 ? share / like_square : 0);
    for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR {
      const int64_t k = at + i;
      const V own = hn::NegMulAdd(by_x, load(from + k, lanes), hn::Mul(scale, load(gradients + k, lanes)));
      store(hn::MulAdd(by_like, load(likes + k, lanes), load(to_like + k, lanes)), to_like + k, lanes);
      store(own, to + k, lanes);
    });
  });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(mix_streams_forward);
NIBBLE_SIMD_KERNEL(mix_streams_backward);
NIBBLE_SIMD_KERNEL(match_rms_forward);
NIBBLE_SIMD_KERNEL(match_rms_backward);

}  // namespace nibble::ops::cpu
#endif
