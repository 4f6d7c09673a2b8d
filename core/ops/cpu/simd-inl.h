// Vectors of f32 for the kernels of this folder: loads and stores that convert, ends of rows, sums, exp, tanh and erfc.
// Compiled once per instruction set (Highway); include after hwy/foreach_target.h.

#if defined(NIBBLE_CORE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CORE_OPS_CPU_SIMD_INL_H_
#undef NIBBLE_CORE_OPS_CPU_SIMD_INL_H_
#else
#define NIBBLE_CORE_OPS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include <hwy/highway.h>
#include "nibble/core/base/parallel.h"
#include "nibble/core/tensor/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Integers = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using V = hn::Vec<Floats>;
constexpr Floats kF;
constexpr Words kWords;
constexpr Integers kIntegers;
constexpr Halves kHalves;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(kF));

/// How many lanes of a load or store are meant: all, or the first n < kLanes (the others load as 0).
struct Whole {};
struct Part {
  size_t n;
};

HWY_INLINE V splat(float value) { return hn::Set(kF, value); }

HWY_INLINE V load(const float* p, Whole = {}) { return hn::LoadU(kF, p); }
HWY_INLINE V load(const bf16* p, Whole = {}) {
  const auto halves = hn::LoadU(kHalves, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(kF, hn::ShiftLeft<16>(hn::PromoteTo(kWords, halves)));
}
HWY_INLINE V load(const f16* p, Whole = {}) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(kF, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  float values[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    f16 value;
    std::memcpy(&value, p + i, sizeof(value));
    values[i] = static_cast<float>(value);
  }
  return load(values);
#endif
}
template <typename Element>
HWY_INLINE V load(const Element* p, Part part) {
  Element padded[kLanes];
  std::memset(padded, 0, sizeof(padded));
  std::memcpy(padded, p, part.n * sizeof(Element));
  return load(padded);
}

HWY_INLINE void store(V v, float* p, Whole = {}) { hn::StoreU(v, kF, p); }
/// Rounds to nearest even; NaN stays NaN.
HWY_INLINE void store(V v, bf16* p, Whole = {}) {
  const auto bits = hn::BitCast(kWords, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kWords, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(kWords, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(kWords, 0x400000u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(kWords, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::TruncateTo(kHalves, hn::ShiftRight<16>(chosen)), kHalves, reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE void store(V v, f16* p, Whole = {}) {
  float values[kLanes];
  store(v, values);
  for (int64_t i = 0; i < kLanes; ++i) p[i] = f16(values[i]);
}
template <typename Element>
HWY_INLINE void store(V v, Element* p, Part part) {
  Element padded[kLanes];
  store(v, padded);
  std::memcpy(p, padded, part.n * sizeof(Element));
}

/// body(i, lanes) for i = 0, kLanes, ... below count, the last one with a Part if it is not whole.
template <typename Body>
HWY_INLINE void for_lanes(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Whole{});
  if (i < count) body(i, Part{static_cast<size_t>(count - i)});
}

/// The same, shared among threads in pieces of `grain`. Body holds copies of what it uses.
template <typename Body>
HWY_INLINE void parallel_lanes(int64_t count, int64_t grain, const Body& body) {
  parallel_for(count, grain, [=](int64_t begin, int64_t end) HWY_ATTR {
    for_lanes(end - begin, [=](int64_t i, auto lanes) HWY_ATTR { body(begin + i, lanes); });
  });
}

/// Sum over i of term(i, lanes), in a fixed order: four vectors of partial sums, then across lanes.
template <typename Term>
HWY_INLINE float sum_lanes(int64_t count, const Term& term) {
  V a = hn::Zero(kF), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a = hn::Add(a, term(i, Whole{}));
    b = hn::Add(b, term(i + kLanes, Whole{}));
    c = hn::Add(c, term(i + 2 * kLanes, Whole{}));
    d = hn::Add(d, term(i + 3 * kLanes, Whole{}));
  }
  for (; i + kLanes <= count; i += kLanes) a = hn::Add(a, term(i, Whole{}));
  if (i < count) b = hn::Add(b, term(i, Part{static_cast<size_t>(count - i)}));
  return hn::GetLane(hn::SumOfLanes(kF, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

/// x, but at least `low`, or at most `high`; NaN stays NaN.
HWY_INLINE V at_least(float low, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON  // their Max and Min prefer the number
  return hn::IfThenElse(hn::Lt(x, splat(low)), splat(low), x);
#else
  return hn::Max(splat(low), x);  // x second: then a NaN is kept
#endif
}
HWY_INLINE V at_most(float high, V x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::Lt(splat(high), x), splat(high), x);
#else
  return hn::Min(splat(high), x);
#endif
}

constexpr float kLog2E = 1.44269504f;  // e^x = 2^(kLog2E x)

/// 1.5 * 2^23: a sum with it is rounded to a whole number, which stands in its last bits.
constexpr float kToWhole = 12582912.0f;

/// 2^n of kToWhole + n, n in [-127, 127]; 2^-127 is 0.
HWY_INLINE V power_of_two(V to_whole) {
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(kIntegers, to_whole));
  return hn::BitCast(kF, hn::Add(exponent, hn::Set(kIntegers, 127 << 23)));
}

/// The polynomial with these coefficients, the highest first, of several x in step, which hides the latency.
template <size_t terms, size_t n>
HWY_INLINE void polynomial(const float (&coefficients)[terms], const V (&x)[n], V (&value)[n]) {
  for (size_t i = 0; i < n; ++i) value[i] = splat(coefficients[0]);
#pragma GCC unroll 8
  for (size_t k = 1; k < terms; ++k) {
    for (size_t i = 0; i < n; ++i) value[i] = hn::MulAdd(value[i], x[i], splat(coefficients[k]));
  }
}

/// e^x within 2 units in the last place; 0 below -87.7, saturates at 1.7e38 above 88; NaN gives NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2, and a minimax polynomial for e^r (its error: 3e-9).
HWY_INLINE V exp(V x) {
  x = at_most(88.0f, at_least(-88.0f, x));
  const V to_whole = hn::MulAdd(x, splat(kLog2E), splat(kToWhole)), n = hn::Sub(to_whole, splat(kToWhole));
  // ln 2 in two parts: the first has zeros at its end, so that n times it is exact.
  const V r[] = {hn::NegMulAdd(n, splat(-2.12194440e-4f), hn::NegMulAdd(n, splat(0.693359375f), x))};
  V p[1];
  polynomial({0.00138145406f, 0.00836874545f, 0.0416683890f, 0.166665211f, 0.49999994f, 1.0f, 1.0f}, r, p);
  return hn::Mul(p[0], power_of_two(to_whole));
}

/// 1 / (1 + e^-x)
HWY_INLINE V sigmoid(V x) {
  const V one = splat(1);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(x))));
}

/// tanh x: the odd Taylor-like polynomial of Cephes (tanhf) near 0, where 1 - 2 / (e^2x + 1) would cancel.
HWY_INLINE V tanh(V x) {
  const V magnitude = hn::Abs(x), square = hn::Mul(x, x);
  V p = splat(-5.70498872745e-3f);
  p = hn::MulAdd(p, square, splat(2.06390887954e-2f));
  p = hn::MulAdd(p, square, splat(-5.37397155531e-2f));
  p = hn::MulAdd(p, square, splat(1.33314422036e-1f));
  p = hn::MulAdd(p, square, splat(-3.33332819422e-1f));
  const V near = hn::MulAdd(hn::Mul(p, square), x, x);
  const V one = splat(1);
  const V far = hn::Sub(one, hn::Div(splat(2), hn::Add(exp(hn::Add(magnitude, magnitude)), one)));
  return hn::IfThenElse(hn::Lt(magnitude, splat(0.625f)), near, hn::CopySign(far, x));
}

/// e^(z^2) erfc(z) for z >= 0: t P(u), t = 1 / (1 + 0.3 z), u = t mapped to [-1, 1] for z in [0, 9.5]; P interpolates
/// at Chebyshev nodes, relative error 2.4e-8. Beyond 9.5 the value at 9.5.
HWY_INLINE V scaled_erfc(V z) {
  const V one = splat(1);
  const V t = hn::Div(one, hn::MulAdd(splat(0.3f), hn::Min(splat(9.5f), z), one));
  constexpr float kLow = 1 / (1 + 0.3f * 9.5f);
  const V u = hn::MulAdd(t, splat(2 / (1 - kLow)), splat(-(1 + kLow) / (1 - kLow)));
  V p = splat(-4.5964196e-5f);
  p = hn::MulAdd(p, u, splat(-1.58903917e-4f));
  p = hn::MulAdd(p, u, splat(4.88683174e-4f));
  p = hn::MulAdd(p, u, splat(5.86701464e-3f));
  p = hn::MulAdd(p, u, splat(2.63026226e-2f));
  p = hn::MulAdd(p, u, splat(7.83431977e-2f));
  p = hn::MulAdd(p, u, splat(1.74374118e-1f));
  p = hn::MulAdd(p, u, splat(3.02249193e-1f));
  p = hn::MulAdd(p, u, splat(4.12580043e-1f));
  return hn::Mul(t, p);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
