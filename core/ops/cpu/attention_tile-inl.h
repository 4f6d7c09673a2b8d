// Small products and copies of attention tiles, all f32 in local buffers with rows padded to whole vectors.
// Compiled once per instruction set; include after simd-inl.h.

#if defined(NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_
#undef NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_
#else
#define NIBBLE_CORE_OPS_CPU_ATTENTION_TILE_INL_H_
#endif

#include "nibble/core/ops/cpu/attention_plan.h"
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

/// What happens to the result that is already there.
enum class Start { replace, add, rescale_and_add };

/// Element (i, k) is data[i * row + k * step].
struct Left {
  const float* data;
  int64_t row, step;
};

/// c [rows, vectors] (+)= a b over `depth`. The sums stay in registers: 6 x 4 of AVX-512's 32, 6 x 2 of AVX2's 16,
/// which hides the latency of the multiply-add (4 cycles, 2 a cycle) and reads b once for 6 rows.
template <int rows, int vectors>
HWY_INLINE void multiply_panel(Left a, const float* HWY_RESTRICT b, int64_t b_stride, int64_t depth,
                               float* HWY_RESTRICT c, int64_t c_stride, Start start, const float* keep) {
  V sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] = hn::Zero(kF);
  }
  for (int64_t k = 0; k < depth; ++k) {
    V right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = hn::Load(kF, b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const V left = splat(a.data[r * a.row + k * a.step]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = hn::MulAdd(left, right[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      float* at = c + r * c_stride + v * kLanes;
      if (start == Start::add) sums[r][v] = hn::Add(sums[r][v], hn::Load(kF, at));
      if (start == Start::rescale_and_add) sums[r][v] = hn::MulAdd(splat(keep[r]), hn::Load(kF, at), sums[r][v]);
      hn::Store(sums[r][v], kF, at);
    }
  }
}

template <int vectors>
void multiply_columns(Left a, const float* b, int64_t b_stride, int64_t rows, int64_t depth, float* c, int64_t c_stride,
                      Start start, const float* keep) {
  int64_t r = 0;
  const auto at = [&](int64_t row) { return Left{a.data + row * a.row, a.row, a.step}; };
  for (; rows - r >= 6 && rows - r != 8; r += 6) {
    multiply_panel<6, vectors>(at(r), b, b_stride, depth, c + r * c_stride, c_stride, start,
                               keep == nullptr ? nullptr : keep + r);
  }
  for (; r < rows; r += 4) {
    multiply_panel<4, vectors>(at(r), b, b_stride, depth, c + r * c_stride, c_stride, start,
                               keep == nullptr ? nullptr : keep + r);
  }
}

/// c [rows, columns] (+)= a [rows, depth] b [depth, columns]. rows even and at least 4, columns whole vectors; keep
/// [rows] multiplies what is in c (Start::rescale_and_add).
inline void multiply(Left a, const float* b, int64_t b_stride, int64_t rows, int64_t columns, int64_t depth, float* c,
                     int64_t c_stride, Start start, const float* keep = nullptr) {
  constexpr int kVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;
  int64_t column = 0;
  for (; columns - column >= kVectors * kLanes; column += kVectors * kLanes) {
    multiply_columns<kVectors>(a, b + column, b_stride, rows, depth, c + column, c_stride, start, keep);
  }
  const int64_t left = (columns - column) / kLanes;
  if (left == 1) multiply_columns<1>(a, b + column, b_stride, rows, depth, c + column, c_stride, start, keep);
  if constexpr (kVectors == 4) {
    if (left == 2) multiply_columns<2>(a, b + column, b_stride, rows, depth, c + column, c_stride, start, keep);
    if (left == 3) multiply_columns<3>(a, b + column, b_stride, rows, depth, c + column, c_stride, start, keep);
  }
}

/// to [rows, padded] = factor * from, rows `stride` apart, zeros behind `width`.
template <typename Element>
void copy_rows(const Element* from, int64_t stride, int64_t rows, const AttentionPlan& plan, float factor, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for_lanes(plan.width, [&](int64_t i, auto lanes) HWY_ATTR {
      store(hn::Mul(splat(factor), load(from + r * stride + i, lanes)), to + r * plan.padded + i);
    });
  }
}

/// to [padded, kKeys] = transpose of rows [rows, padded]; columns from `rows` on are zero.
inline void transpose(const float* from, int64_t rows, int64_t padded, float* to) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> four;
  const hn::CappedTag<double, 2> two;
  const auto wide = [=](auto v) HWY_ATTR { return hn::BitCast(two, v); };
  for (; r + 4 <= rows; r += 4) {
    for (int64_t i = 0; i < padded; i += 4) {
      const float* at = from + r * padded + i;
      const auto a = hn::Load(four, at), b = hn::Load(four, at + padded);
      const auto c = hn::Load(four, at + 2 * padded), d = hn::Load(four, at + 3 * padded);
      const auto ab = wide(hn::InterleaveLower(four, a, b)), cd = wide(hn::InterleaveLower(four, c, d));
      const auto ab_high = wide(hn::InterleaveUpper(four, a, b)), cd_high = wide(hn::InterleaveUpper(four, c, d));
      float* out = to + i * kKeys + r;
      hn::Store(hn::BitCast(four, hn::InterleaveLower(two, ab, cd)), four, out);
      hn::Store(hn::BitCast(four, hn::InterleaveUpper(two, ab, cd)), four, out + kKeys);
      hn::Store(hn::BitCast(four, hn::InterleaveLower(two, ab_high, cd_high)), four, out + 2 * kKeys);
      hn::Store(hn::BitCast(four, hn::InterleaveUpper(two, ab_high, cd_high)), four, out + 3 * kKeys);
    }
  }
#endif
  for (; r < rows; ++r) {
    for (int64_t i = 0; i < padded; ++i) to[i * kKeys + r] = from[r * padded + i];
  }
  if (rows == kKeys) return;
  for (int64_t i = 0; i < padded; ++i) std::fill(to + i * kKeys + rows, to + (i + 1) * kKeys, 0.0f);
}

/// score after the soft cap, before position slopes
HWY_INLINE V soft_cap(V score, float softcap) {
  return hn::Mul(splat(softcap), tanh(hn::Mul(score, splat(1 / softcap))));
}

/// Column numbers i, i + 1, ... as floats.
HWY_INLINE V column_numbers(int64_t i) { return hn::Iota(kF, static_cast<float>(i)); }

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
