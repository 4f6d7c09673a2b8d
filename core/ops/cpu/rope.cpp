#include "nibble/core/ops/rope.h"

#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

template <typename Element>
void rotate_heads(Element* x, int64_t heads, int64_t head_size, int64_t half, const float* cos, const float* sin,
                  bool inverse) {
  const V sign = splat(inverse ? -1.0f : 1.0f);
  for (int64_t h = 0; h < heads; ++h, x += head_size) {
    for_lanes(half, [=](int64_t i, auto lanes) HWY_ATTR {
      const V c = load(cos + i, lanes), s = hn::Mul(sign, load(sin + i, lanes));
      const V a = load(x + i, lanes), b = load(x + half + i, lanes);
      store(hn::NegMulAdd(b, s, hn::Mul(a, c)), x + i, lanes);
      store(hn::MulAdd(a, s, hn::Mul(b, c)), x + half + i, lanes);
    });
  }
}

template <typename Element>
void rotate_neighbours(Element* x, int64_t heads, int64_t head_size, int64_t half, const float* cos, const float* sin,
                       bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  for (int64_t h = 0; h < heads; ++h, x += head_size) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = static_cast<float>(x[2 * i]), b = static_cast<float>(x[2 * i + 1]), s = sign * sin[i];
      x[2 * i] = Element(a * cos[i] - b * s);
      x[2 * i + 1] = Element(b * cos[i] + a * s);
    }
  }
}

template <typename Element>
void rotate(Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool inverse,
            RopePairs pairs, int64_t first) {
  const int64_t width = x.dim(1), half = cos.dim(1);
  Element* rows = x.data<Element>();
  const int32_t* position = positions.data<const int32_t>();
  const float *cosines = cos.data<const float>(), *sines = sin.data<const float>();
  parallel_each(x.dim(0), 16, [=](int64_t t) {
    const int64_t at = position[t] * half;
    const auto turn = pairs == RopePairs::halves ? rotate_heads<Element> : rotate_neighbours<Element>;
    turn(rows + t * width + first, heads, width / heads, half, cosines + at, sines + at, inverse);
  });
}

void rope(Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool inverse,
          RopePairs pairs, int64_t begin) {
  if (x.dtype() == DType::bf16) return rotate<bf16>(x, heads, positions, cos, sin, inverse, pairs, begin);
  rotate<float>(x, heads, positions, cos, sin, inverse, pairs, begin);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(rope);

}  // namespace nibble::ops::cpu
#endif
