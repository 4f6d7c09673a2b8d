#include "nibble/core/ops/elementwise.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/element_type.h"
#include "nibble/core/ops/cpu/simd_targets.h"
#include "nibble/core/ops/ref/elementwise.h"
#include "nibble/core/ops/residual.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/elementwise/elementwise.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kGrain = 1 << 15;

/// to[i] = f(from[i]); they may be the same.
template <typename From, typename To, typename F>
void transform(const From* from, To* to, int64_t count, const F& f) {
  parallel_lanes(count, kGrain,
                 [=](int64_t i, auto lanes) HWY_ATTR { store(f(load(from + i, lanes)), to + i, lanes); });
}

template <typename To>
void cast_to(const Tensor& from, To* to) {
  const auto same = [](V v) HWY_ATTR { return v; };
  if (from.dtype() == DType::f32) return transform(from.data<const float>(), to, from.numel(), same);
  if (from.dtype() == DType::f16) return transform(from.data<const f16>(), to, from.numel(), same);
  transform(from.data<const bf16>(), to, from.numel(), same);
}

void cast(const Tensor& from, Tensor& to) {
  if (to.dtype() == DType::f32) return cast_to(from, to.data<float>());
  if (to.dtype() == DType::f16) return cast_to(from, to.data<f16>());
  cast_to(from, to.data<bf16>());
}

/// sum = x + factor y; x and sum may be the same.
template <typename Element>
void add_scaled(const float* x, const Element* y, int64_t count, float factor, float* sum) {
  parallel_lanes(count, kGrain, [=](int64_t i, auto lanes) HWY_ATTR {
    store(hn::MulAdd(splat(factor), load(y + i, lanes), load(x + i, lanes)), sum + i, lanes);
  });
}

void add_residual(const Tensor& x, const Tensor& y, float factor, Tensor& sum) {
  const float* from = x.data<const float>();
  float* to = sum.data<float>();
  if (y.dtype() == DType::bf16) return add_scaled(from, y.data<const bf16>(), y.numel(), factor, to);
  add_scaled(from, y.data<const float>(), y.numel(), factor, to);
}

void scale(Tensor& x, float factor) {
  const auto times = [factor](V v) HWY_ATTR { return hn::Mul(v, splat(factor)); };
  if (x.dtype() == DType::bf16) return transform(x.data<bf16>(), x.data<bf16>(), x.numel(), times);
  transform(x.data<float>(), x.data<float>(), x.numel(), times);
}

template <typename Element>
void multiply_rows(const Element* x, const float* weights, int64_t step, int64_t rows, int64_t width, Element* y) {
  parallel_each(rows, 32, [=](int64_t t) HWY_ATTR {
    const Element* from = x + t * width;
    Element* to = y + t * width;
    const float weight = weights[t * step];
    for_lanes(width, [=](int64_t i, auto lanes)
                         HWY_ATTR { store(hn::Mul(load(from + i, lanes), splat(weight)), to + i, lanes); });
  });
}

void scale_rows(const Tensor& x, const Tensor& weights, Tensor& y) {
  cpu::with_element(x, [&]<typename Element>(Element) {
    multiply_rows(x.data<const Element>(), weights.data<const float>(), weights.numel() == 1 ? 0 : 1, x.dim(0),
                  x.dim(1), y.data<Element>());
  });
}

template <typename Element>
void add_to_rows(const float* bias, int64_t tokens, int64_t width, Element* x) {
  parallel_each(tokens, 32, [=](int64_t t) HWY_ATTR {
    Element* row = x + t * width;
    for_lanes(width, [=](int64_t i, auto lanes)
                         HWY_ATTR { store(hn::Add(load(row + i, lanes), load(bias + i, lanes)), row + i, lanes); });
  });
}

void add_bias(const Tensor& bias, Tensor& x) {
  const float* values = bias.data<const float>();
  if (x.dtype() == DType::bf16) return add_to_rows(values, x.dim(0), x.dim(1), x.data<bf16>());
  add_to_rows(values, x.dim(0), x.dim(1), x.data<float>());
}

/// Threads share columns, so every sum runs in the order of rows.
template <typename Element>
void add_columns(const Element* dy, int64_t tokens, int64_t width, float* dbias) {
  parallel_for(width, 256, [=](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t t = 0; t < tokens; ++t) {
      const Element* row = dy + t * width;
      for_lanes(end - begin, [=](int64_t i, auto lanes) HWY_ATTR {
        float* sum = dbias + begin + i;
        store(hn::Add(load(sum, lanes), load(row + begin + i, lanes)), sum, lanes);
      });
    }
  });
}

void bias_backward(const Tensor& dy, Tensor& dbias) {
  float* sums = dbias.data<float>();
  if (dy.dtype() == DType::bf16) return add_columns(dy.data<const bf16>(), dy.dim(0), dy.dim(1), sums);
  add_columns(dy.data<const float>(), dy.dim(0), dy.dim(1), sums);
}

using Doubles = hn::ScalableTag<double>;
constexpr Doubles kD;

HWY_INLINE auto load_doubles(const float* p) { return hn::PromoteTo(kD, hn::LoadU(hn::Rebind<float, Doubles>(), p)); }
HWY_INLINE auto load_doubles(const bf16* p) {
  const hn::Rebind<uint32_t, Doubles> words;
  const auto halves = hn::LoadU(hn::Rebind<uint16_t, Doubles>(), reinterpret_cast<const uint16_t*>(p));
  const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(words, halves));
  return hn::PromoteTo(kD, hn::BitCast(hn::Rebind<float, Doubles>(), bits));
}

template <typename Element>
double squares(const Element* x, int64_t count) {
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(kD));
  hn::Vec<Doubles> sums[4] = {hn::Zero(kD), hn::Zero(kD), hn::Zero(kD), hn::Zero(kD)};
  int64_t i = 0;
  for (; i + 4 * kStep <= count; i += 4 * kStep) {
    for (int64_t k = 0; k < 4; ++k) {
      const auto v = load_doubles(x + i + k * kStep);
      sums[k] = hn::MulAdd(v, v, sums[k]);
    }
  }
  double sum = hn::GetLane(hn::SumOfLanes(kD, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
  for (; i < count; ++i)
    sum += static_cast<double>(static_cast<float>(x[i])) * static_cast<double>(static_cast<float>(x[i]));
  return sum;
}

double sum_of_squares(const Tensor& x) {
  std::vector<double> chunks(static_cast<size_t>((x.numel() + kGrain - 1) / kGrain));
  parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    chunks[static_cast<size_t>(begin / kGrain)] = x.dtype() == DType::bf16
                                                      ? squares(x.data<const bf16>() + begin, end - begin)
                                                      : squares(x.data<const float>() + begin, end - begin);
  });
  double sum = 0;
  for (double chunk : chunks) sum += chunk;
  return sum;
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(cast);
NIBBLE_SIMD_KERNEL(add_residual);
NIBBLE_SIMD_KERNEL(scale);
NIBBLE_SIMD_KERNEL(scale_rows);
NIBBLE_SIMD_KERNEL(add_bias);
NIBBLE_SIMD_KERNEL(bias_backward);
NIBBLE_SIMD_KERNEL(sum_of_squares);

namespace {

/// Bits that are all set in infinity and NaN, and in no other value.
uint32_t exponent_bits(float) { return 0x7f800000u; }
uint16_t exponent_bits(bf16) { return 0x7f80u; }
uint16_t exponent_bits(f16) { return 0x7c00u; }

/// The exponent is compared as an integer, a form that any compiler vectorizes.
template <typename Element>
int64_t nonfinite(const Element* x, int64_t count) {
  using Bits = decltype(exponent_bits(Element{}));
  const Bits mask = exponent_bits(Element{});
  const auto outside = [=](int64_t i) { return (std::bit_cast<Bits>(x[i]) & mask) == mask; };
  constexpr int64_t kBlock = 1 << 15;
  std::atomic<int64_t> first = count;
  parallel_for(count, kBlock, [&](int64_t begin, int64_t end) {
    bool found = false;
    for (int64_t i = begin; i < end; ++i) found |= outside(i);
    if (!found) return;
    while (!outside(begin)) ++begin;
    int64_t known = first.load();
    while (begin < known && !first.compare_exchange_weak(known, begin)) {
    }
  });
  return first == count ? -1 : first.load();
}

/// quad(n): elements 4 * n .. 4 * n + 3
template <typename Element>
void fill(Element* x, int64_t count, const auto& quad) {
  parallel_for(count, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const std::array<float, 4> values = quad(i / 4);
      for (int64_t k = 0; k < std::min<int64_t>(4, end - i); ++k) x[i + k] = Element(values[static_cast<size_t>(k)]);
    }
  });
}

void fill(Tensor& x, const auto& quad) {
  if (x.dtype() == DType::bf16) return fill(x.data<bf16>(), x.numel(), quad);
  fill(x.data<float>(), x.numel(), quad);
}

}  // namespace

double sum(const Tensor& x) {
  double total = 0;
  for (const float value : x.span<const float>()) total += static_cast<double>(value);
  return total;
}

int64_t first_nonfinite(const Tensor& x) {
  if (x.dtype() == DType::f16) return nonfinite(x.data<const f16>(), x.numel());
  if (x.dtype() == DType::bf16) return nonfinite(x.data<const bf16>(), x.numel());
  return nonfinite(x.data<const float>(), x.numel());
}

void fill_uniform(Tensor& x, float low, float high, uint64_t seed, uint64_t purpose) {
  fill(x, [=](int64_t quad) { return ref::uniform_quad(quad, low, high, seed, purpose); });
}

}  // namespace nibble::ops::cpu
#endif
