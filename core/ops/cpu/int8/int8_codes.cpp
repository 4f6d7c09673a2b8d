#include "nibble/core/ops/cpu/int8/int8_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/simd_targets.h"
#include "nibble/core/ops/int8/int8_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/int8/int8_codes.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

using Integer = hn::Vec<Integers>;

/// As whole numbers, so that what is not finite counts as the largest.
HWY_INLINE Integer magnitude(V x) { return hn::BitCast(kIntegers, hn::Abs(x)); }

template <typename Element>
HWY_INLINE float largest(const Element* values, int64_t count) {
  Integer most = hn::Zero(kIntegers);
  for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR { most = hn::Max(most, magnitude(load(values + i, lanes))); });
  return hn::GetLane(hn::BitCast(kF, hn::MaxOfLanes(kIntegers, most)));
}

/// To the nearest whole number, ties to even, for magnitudes below 2^22: what is added leaves no room for a fraction.
HWY_INLINE Integer whole(V x) {
  const V magic = splat(12582912.0f);  // 1.5 * 2^23
  return hn::Sub(hn::BitCast(kIntegers, hn::Add(x, magic)), hn::BitCast(kIntegers, magic));
}

template <typename Byte>
HWY_INLINE void store_bytes(Integer x, Byte* p, Whole) {
  const hn::Rebind<uint8_t, Integers> bytes;
  hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(kWords, x)), bytes, reinterpret_cast<uint8_t*>(p));
}
template <typename Byte>
HWY_INLINE void store_bytes(Integer x, Byte* p, Part part) {
  Byte padded[kLanes];
  store_bytes(x, padded, Whole{});
  std::memcpy(p, padded, part.n);
}

float int8_largest(const float* values, int64_t count) { return largest(values, count); }

void int8_keep_larger(const float* values, int64_t count, float* most) {
  for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
    const Integer larger = hn::Max(magnitude(load(most + i, lanes)), magnitude(load(values + i, lanes)));
    store(hn::BitCast(kF, larger), most + i, lanes);
  });
}

void int8_codes(const float* values, const float* inverses, int64_t count, int32_t bias, uint8_t* out) {
  const Integer more = hn::Set(kIntegers, bias);
  for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
    const Integer codes = whole(hn::Mul(load(values + i, lanes), load(inverses + i, lanes)));
    store_bytes(hn::Add(codes, more), out + i, lanes);
  });
}

template <typename Element>
void round_rows(const Element* x, Int8Rows& rows) {
  const int64_t count = rows.rows(), depth = rows.depth;
  auto* codes = rows.codes.data<int8_t>();
  auto* scales = rows.scales.data<float>();
  auto* sums = rows.sums.data<int32_t>();
  constexpr int64_t kElements = int64_t{1} << 15;  // of a piece of work: 10 us and more
  const int64_t grain = std::max(int64_t{1}, kElements / std::max(int64_t{1}, depth));
  parallel_each(count, grain, [=](int64_t t) HWY_ATTR {
    for (int64_t k = 0, at = t; k < depth; k += kInt8Group, at += count) {
      const int64_t size = std::min(kInt8Group, depth - k);
      const Element* from = x + t * depth + k;
      int8_t* to = codes + at * kInt8Group;
      const cpu::Int8Scale by(largest(from, size), 127);
      scales[at] = by.scale;
      sums[at] = 0;
      if (by.inverse == 0 || size < kInt8Group) std::memset(to, 0, kInt8Group);
      if (by.inverse == 0) continue;
      Integer sum = hn::Zero(kIntegers);
      for_lanes(size, [&](int64_t i, auto lanes) HWY_ATTR {
        const Integer code = whole(hn::Mul(load(from + i, lanes), splat(by.inverse)));
        store_bytes(code, to + i, lanes);
        sum = hn::Add(sum, code);
      });
      sums[at] = hn::GetLane(hn::SumOfLanes(kIntegers, sum));
    }
  });
}

void int8_round(const Tensor& x, Int8Rows& rows) {
  if (x.dtype() == DType::bf16) return round_rows(x.data<const bf16>(), rows);
  round_rows(x.data<const float>(), rows);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

HWY_EXPORT(int8_largest);
HWY_EXPORT(int8_keep_larger);
HWY_EXPORT(int8_codes);
NIBBLE_SIMD_KERNEL(int8_round);

float int8_largest(const float* values, int64_t count) { return NIBBLE_SIMD(int8_largest)(values, count); }
void int8_keep_larger(const float* values, int64_t count, float* most) {
  NIBBLE_SIMD(int8_keep_larger)(values, count, most);
}
void int8_codes(const float* values, const float* inverses, int64_t count, int32_t bias, uint8_t* out) {
  NIBBLE_SIMD(int8_codes)(values, inverses, count, bias, out);
}

Int8Scale::Int8Scale(float largest, int64_t levels) : scale(0), inverse(0) {
  if (!std::isfinite(largest)) {
    scale = std::numeric_limits<float>::quiet_NaN();
  } else if (largest >= 1e-30f) {
    scale = largest / static_cast<float>(levels);
    inverse = static_cast<float>(levels) / largest;
  }
}

}  // namespace nibble::ops::cpu
#endif
