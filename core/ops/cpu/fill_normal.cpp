#include <bit>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/ref/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/fill_normal.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

// The bits of ref::normal_quad, several quads at once: logarithm, sine and cosine are approximated within 2^-40, and
// where that is too near to the middle between two f32 to tell which the reference gives, the reference is asked.

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

using Doubles = hn::ScalableTag<double>;
using Longs = hn::RebindToUnsigned<Doubles>;
using SignedLongs = hn::RebindToSigned<Doubles>;
using Singles = hn::Rebind<float, Doubles>;
using Double = hn::Vec<Doubles>;
using Long = hn::Vec<Longs>;
constexpr Doubles kD;
constexpr Longs kLongs;
constexpr SignedLongs kSigned;
constexpr Singles kSingles;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE bool fill_quads(int64_t, double, uint64_t, uint64_t, float*) { return false; }
#else

HWY_INLINE Double constant(double value) { return hn::Set(kD, value); }
/// Of numbers below 2^63.
HWY_INLINE Double number(Long v) { return hn::ConvertTo(kD, hn::BitCast(kSigned, v)); }

struct Words4 {
  Long words[4];  // in the low halves
};

/// philox4x32 of the quads `first`, `first` + 1, ...
HWY_INLINE Words4 philox(uint64_t first, uint64_t seed, uint64_t purpose) {
  constexpr hn::Repartition<uint32_t, Longs> kHalfWords;
  const auto times = [=](Long v, uint64_t factor) HWY_ATTR {
    return hn::MulEven(hn::BitCast(kHalfWords, v), hn::BitCast(kHalfWords, hn::Set(kLongs, factor)));
  };
  constexpr uint64_t kLow = 0xffffffff, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  const Long index = hn::Iota(kLongs, first);
  Long c[4] = {index, hn::ShiftRight<32>(index), hn::Set(kLongs, purpose & kLow), hn::Set(kLongs, purpose >> 32)};
  uint64_t key0 = seed & kLow, key1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {  // the upper halves may hold anything
    const Long p0 = times(c[0], 0xD2511F53), p1 = times(c[2], 0xCD9E8D57);
    c[0] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c[1]), hn::Set(kLongs, key0));
    c[2] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c[3]), hn::Set(kLongs, key1));
    c[1] = p1;
    c[3] = p0;
    key0 = (key0 + kWeyl0) & kLow;
    key1 = (key1 + kWeyl1) & kLow;
  }
  const Long low = hn::Set(kLongs, kLow);
  return {{hn::And(c[0], low), hn::And(c[1], low), hn::And(c[2], low), hn::And(c[3], low)}};
}

/// ln x, x > 0 and normal: x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)), whose series
/// ends where its rest is below 4e-14 of it.
HWY_INLINE Double log(Double x) {
  const auto bits = hn::BitCast(kSigned, x);
  const auto root_half = hn::Set(kSigned, std::bit_cast<int64_t>(0.70710678118654752440));
  const auto exponent = hn::ShiftRight<52>(hn::Sub(bits, root_half));
  const Double m = hn::BitCast(kD, hn::Sub(bits, hn::ShiftLeft<52>(exponent)));
  const Double s = hn::Div(hn::Sub(m, constant(1)), hn::Add(m, constant(1))), square = hn::Mul(s, s);
  Double p = constant(2.0 / 15);
  for (double term : {2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0}) {
    p = hn::MulAdd(p, square, constant(term));
  }
  return hn::MulAdd(hn::ConvertTo(kD, exponent), constant(0.69314718055994530942), hn::Mul(p, s));
}

struct Turn {
  Double cos, sin, rest;  // rest: the angle from the nearest axis
};

/// Of the angle that the reference has, fl(2 pi (word 2^-32)): its rounding shows near the axes, so that the rest must
/// be that of the rounded angle, less pi / 2 in two parts. Taylor series, whose rests are below 3e-14 up to pi / 4.
HWY_INLINE Turn turn(Long word) {
  const Double angle = hn::Mul(constant(2 * M_PI), hn::Mul(number(word), constant(0x1p-32)));
  const Long quarter = hn::ShiftRight<30>(hn::Add(word, hn::Set(kLongs, uint64_t{1} << 29)));
  // The first bits of pi / 2, so few that multiples up to 4 are exact, and what is left of it.
  constexpr double kHigh = 0x1.921fb54442d00p+0, kRest = 0x1.8469898cc5170p-48;
  const Double count = number(quarter);
  const Double r = hn::NegMulAdd(count, constant(kRest), hn::Sub(angle, hn::Mul(count, constant(kHigh))));
  const Double square = hn::Mul(r, r);
  Double sin = constant(1.0 / 6227020800), cos = constant(-1.0 / 87178291200);
  for (double term : {-1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0}) {
    sin = hn::MulAdd(sin, square, constant(term));
  }
  for (double term : {1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -1.0 / 2, 1.0}) {
    cos = hn::MulAdd(cos, square, constant(term));
  }
  sin = hn::Mul(sin, r);
  const auto one = hn::Set(kLongs, 1), two = hn::Set(kLongs, 2);
  const auto odd = hn::RebindMask(kD, hn::Eq(hn::And(quarter, one), one));
  const auto with_sign = [=](Double v, Long quarters) HWY_ATTR {
    return hn::Xor(v, hn::BitCast(kD, hn::ShiftLeft<62>(hn::And(quarters, two))));
  };
  return {with_sign(hn::IfThenElse(odd, sin, cos), hn::Add(quarter, one)),
          with_sign(hn::IfThenElse(odd, cos, sin), quarter), r};
}

/// Lanes whose f32 is certain: not within 2^13 units of a double of the middle between two.
HWY_INLINE hn::Mask<SignedLongs> certain(Double v) {
  constexpr int64_t kBelowF32 = (int64_t{1} << 29) - 1, kMiddle = int64_t{1} << 28, kNear = int64_t{1} << 13;
  const auto below = hn::And(hn::BitCast(kSigned, v), hn::Set(kSigned, kBelowF32));
  const auto distance = hn::Abs(hn::Sub(below, hn::Set(kSigned, kMiddle)));
  return hn::Gt(distance, hn::Set(kSigned, kNear));
}

/// Elements 4 * quad to the lanes' last; false, where the reference must be asked.
HWY_INLINE bool fill_quads(int64_t quad, double std, uint64_t seed, uint64_t purpose, float* x) {
  const Words4 random = philox(static_cast<uint64_t>(quad), seed, purpose);
  hn::Vec<Singles> result[4];
  auto good = hn::Eq(hn::Zero(kSigned), hn::Zero(kSigned));
  for (int pair = 0; pair < 4; pair += 2) {
    const Double uniform = hn::Mul(hn::Add(number(random.words[pair]), constant(0.5)), constant(0x1p-32));
    const Double radius = hn::Mul(constant(std), hn::Sqrt(hn::Mul(constant(-2), log(uniform))));
    const Turn direction = turn(random.words[pair + 1]);
    const Double first = hn::Mul(radius, direction.cos), second = hn::Mul(radius, direction.sin);
    const auto off_axis = hn::Gt(hn::Abs(direction.rest), constant(0x1p-20));
    good = hn::And(hn::And(good, hn::RebindMask(kSigned, off_axis)), hn::And(certain(first), certain(second)));
    result[pair] = hn::DemoteTo(kSingles, first);
    result[pair + 1] = hn::DemoteTo(kSingles, second);
  }
  hn::StoreInterleaved4(result[0], result[1], result[2], result[3], kSingles, x);
  return hn::AllTrue(kSigned, good);
}

#endif

template <typename Element>
void fill_normal_of(Element* x, int64_t count, float std, uint64_t seed, uint64_t purpose) {
  constexpr int64_t kQuads = static_cast<int64_t>(hn::MaxLanes(kD)), kGrainElements = 1 << 14;
  const bool ordinary = std >= 1e-30f && std <= 1e30f;  // else results may be subnormal, or infinite
  parallel_for(count, kGrainElements, [=](int64_t begin, int64_t end) HWY_ATTR {
    float result[4 * kQuads];
    for (int64_t i = begin; i < end; i += 4 * kQuads) {
      if (!ordinary || !fill_quads(i / 4, static_cast<double>(std), seed, purpose, result)) {
        for (int64_t quad = 0; quad < kQuads; ++quad) {
          const std::array<float, 4> exact = ref::normal_quad(i / 4 + quad, std, seed, purpose);
          std::copy(exact.begin(), exact.end(), result + 4 * quad);
        }
      }
      for (int64_t k = 0; k < std::min(4 * kQuads, end - i); ++k) x[i + k] = Element(result[k]);
    }
  });
}

void fill_normal(Tensor& x, float std, uint64_t seed, uint64_t purpose) {
  if (x.dtype() == DType::bf16) return fill_normal_of(x.data<bf16>(), x.numel(), std, seed, purpose);
  fill_normal_of(x.data<float>(), x.numel(), std, seed, purpose);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(fill_normal);

}  // namespace nibble::ops::cpu
#endif
