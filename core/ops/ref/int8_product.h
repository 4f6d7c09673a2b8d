#pragma once
// Plain reference of ops/int8_product.h.

#include <bit>
#include <cmath>
#include <cstdint>

#include "nibble/core/ops/int8/int8_product.h"
#include "nibble/core/ops/ref/weight_view.h"

namespace nibble::ops::ref {

/// How the elements of a group are rounded, from the largest of their magnitudes.
struct Int8Scale {
  float scale = 0, inverse = 0;

  Int8Scale(float bound, int64_t levels) {
    if (!std::isfinite(bound)) {
      scale = std::bit_cast<float>(0x7fc00000u);
    } else if (bound >= 1e-30f) {
      scale = bound / static_cast<float>(levels);
      inverse = static_cast<float>(levels) / bound;
    }
  }
  int32_t code(float value) const {
    return inverse == 0 ? 0 : static_cast<int32_t>(std::nearbyint(value * inverse));  // ties to even
  }
};

/// The larger magnitude, NaN above all numbers.
inline float larger(float a, float b) {
  const uint32_t x = std::bit_cast<uint32_t>(a) & 0x7fffffffu, y = std::bit_cast<uint32_t>(b) & 0x7fffffffu;
  return std::bit_cast<float>(x > y ? x : y);
}

/// Whether W has the scales of its blocks: no block crosses the end of a row. What is stored low nibble first (MXFP4)
/// is rounded by value.
inline bool scaled_by_block(const WeightView& w) {
  return w.encoding == WeightEncoding::four_bit && w.cols() % w.four_bit.block_size == 0 && !w.four_bit.low_first;
}

/// W[row, col]
inline float element(const WeightView& w, int64_t row, int64_t col) {
  if (w.encoding == WeightEncoding::four_bit) return element(w.four_bit, row, col);
  const std::byte* at = w.dense.raw() + (row * w.cols() + col) * static_cast<int64_t>(dtype_size(w.dense.dtype()));
  const auto read = [at]<typename T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<float>(value);
  };
  return w.dense.dtype() == DType::f32 ? read(float()) : w.dense.dtype() == DType::bf16 ? read(bf16()) : read(f16());
}

/// What W[row, col] counts for in the scale of its group.
inline float bound(const WeightView& w, int64_t row, int64_t col) {
  if (!scaled_by_block(w)) return element(w, row, col);
  float most = 0;
  for (const float value : w.four_bit.table) most = larger(most, value);
  return most * block_scale(w.four_bit, ((w.four_bit.first_row + row) * w.cols() + col) / w.four_bit.block_size);
}

template <typename Element>
void int8_round(const Element* x, int64_t rows, int64_t depth, int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t begin = 0, g = 0; begin < depth; begin += kInt8Group, ++g) {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t count = std::min(kInt8Group, depth - begin);
      const Element* row = x + t * depth + begin;
      float most = 0;
      for (int64_t k = 0; k < count; ++k) most = larger(most, static_cast<float>(row[k]));
      const Int8Scale by(most, 127);
      scales[g * rows + t] = by.scale;
      int32_t& sum = sums[g * rows + t] = 0;
      for (int64_t k = 0; k < kInt8Group; ++k) {
        const int32_t code = k < count ? by.code(static_cast<float>(row[k])) : 0;
        codes[(g * rows + t) * kInt8Group + k] = static_cast<int8_t>(code);
        sum += code;
      }
    }
  }
}

/// c [M, N] f32 = x W^T (transposed) or x W, with `levels` numbers for W on either side of 0.
inline void int8_matmul(const Int8Rows& x, const WeightView& w, bool transposed, int64_t levels, float* c) {
  const int64_t columns = transposed ? w.rows() : w.cols(), rows = x.rows();
  const auto at = [&](auto f, int64_t k, int64_t n) { return transposed ? f(w, n, k) : f(w, k, n); };
  const auto* left_codes = x.codes.data<const int8_t>();
  const auto* left_scales = x.scales.data<const float>();
  const auto value = [](const WeightView& from, int64_t row, int64_t col) { return element(from, row, col); };
  for (int64_t n = 0; n < columns; ++n) {
    for (int64_t m = 0; m < rows; ++m) c[m * columns + n] = 0;
    for (int64_t g = 0; g < x.groups(); ++g) {
      const int64_t begin = g * kInt8Group, end = std::min(x.depth, begin + kInt8Group);
      float most = 0;
      for (int64_t k = begin; k < end; ++k) most = larger(most, at(bound, k, n));
      const Int8Scale by(most, levels);
      int32_t codes[kInt8Group];
      for (int64_t k = begin; k < end; ++k) codes[k - begin] = by.code(at(value, k, n));
      for (int64_t m = 0; m < rows; ++m) {
        const int8_t* left = left_codes + (g * rows + m) * kInt8Group;
        int32_t sum = 0;
        for (int64_t k = begin; k < end; ++k) sum += codes[k - begin] * left[k - begin];
        float& to = c[m * columns + n];
        to = std::fma(static_cast<float>(sum) * by.scale, left_scales[g * rows + m], to);
      }
    }
  }
}

}  // namespace nibble::ops::ref
