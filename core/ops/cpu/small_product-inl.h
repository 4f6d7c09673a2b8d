// Products of matrices that fit the inner caches, f32: the chunks of linear attention. Compiled once per instruction
// set (Highway); include after hwy/foreach_target.h.

#if defined(NIBBLE_CORE_OPS_CPU_SMALL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CORE_OPS_CPU_SMALL_PRODUCT_INL_H_
#undef NIBBLE_CORE_OPS_CPU_SMALL_PRODUCT_INL_H_
#else
#define NIBBLE_CORE_OPS_CPU_SMALL_PRODUCT_INL_H_
#endif

#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

/// A matrix [n, m] whose element (i, j) is at data[i * row + j * column].
struct Strided {
  const float* data;
  int64_t row, column = 1;
};

/// Of a row-major matrix the transpose.
HWY_INLINE Strided transposed(const float* data, int64_t row) { return {data, 1, row}; }

template <int kRows, int kVectors, typename Lanes>
HWY_INLINE void product_tile(const Strided& a, const float* b, int64_t b_row, int64_t depth, bool add, float* c,
                             int64_t c_row, Lanes lanes) {
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = add ? load(c + r * c_row + v * kLanes, lanes) : hn::Zero(kF);
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + p * b_row + v * kLanes, lanes);
    for (int r = 0; r < kRows; ++r) {
      const V left = splat(a.data[r * a.row + p * a.column]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(sums[r][v], c + r * c_row + v * kLanes, lanes);
  }
}

template <int kRows>
void product_rows(const Strided& a, const float* b, int64_t b_row, int64_t columns, int64_t depth, bool add, float* c,
                  int64_t c_row) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
    product_tile<kRows, 2>(a, b + j, b_row, depth, add, c + j, c_row, Whole());
  }
  for (; j + kLanes <= columns; j += kLanes) {
    product_tile<kRows, 1>(a, b + j, b_row, depth, add, c + j, c_row, Whole());
  }
  if (j < columns) {
    const Part rest{static_cast<size_t>(columns - j)};
    product_tile<kRows, 1>(a, b + j, b_row, depth, add, c + j, c_row, rest);
  }
}

/// c [rows, columns] = a [rows, depth] b [depth, columns], or with `add` +=; b and c row-major with rows b_row and
/// c_row apart. Every element is summed over depth in order, whatever the sizes.
inline void product(const Strided& a, const float* b, int64_t b_row, int64_t rows, int64_t columns, int64_t depth,
                    bool add, float* c, int64_t c_row) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    product_rows<4>({a.data + i * a.row, a.row, a.column}, b, b_row, columns, depth, add, c + i * c_row, c_row);
  }
  for (; i < rows; ++i) {
    product_rows<1>({a.data + i * a.row, a.row, a.column}, b, b_row, columns, depth, add, c + i * c_row, c_row);
  }
}

/// to [columns, rows] with rows to_row apart = the transpose of from [rows, columns].
inline void transpose_into(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                           int64_t to_row) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
}

/// y (+)= factor * x, n elements.
HWY_INLINE void scaled(const float* x, float factor, int64_t n, bool add, float* y) {
  const V times = splat(factor);
  for_lanes(n, [=](int64_t i, auto lanes) HWY_ATTR {
    const V v = load(x + i, lanes);
    store(add ? hn::MulAdd(v, times, load(y + i, lanes)) : hn::Mul(v, times), y + i, lanes);
  });
}

HWY_INLINE float dot(const float* x, const float* y, int64_t n) {
  return sum_lanes(n, [=](int64_t i, auto lanes) HWY_ATTR { return hn::Mul(load(x + i, lanes), load(y + i, lanes)); });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
