#pragma once
// What rounding costs a product in 8 bits (ops/int8/int8_product.h), estimated from its operands: every element errs by
// a step of its scale, evenly spread over +-1/2 and independent of the others, so that the expected square of the
// result's error is a sum of squares over the depth. Channels of x far above their neighbours have large steps, which
// count by the weights that meet these neighbours.

#include <algorithm>

#include "nibble/core/ops/int8/int8_product.h"

namespace nibble::ops {

/// Rows of x that are looked at, evenly spread, and columns of the product: two runs of neighbours.
inline constexpr int64_t kInt8SampledRows = 16, kInt8Runs = 2, kInt8Run = 16;

/// Columns [begin, end) of run i < kInt8Runs of `columns`; none where there are fewer.
struct Int8SampledRun {
  Int8SampledRun(int64_t columns, int64_t i)
      : begin(std::min(columns, columns <= kInt8Runs * kInt8Run ? i * kInt8Run : columns * (2 * i + 1) / 4)),
        end(std::min(columns, begin + kInt8Run)) {}
  int64_t begin, end;
};

/// Row i < kInt8SampledRows of `rows`, or past the end.
inline int64_t int8_sampled_row(int64_t rows, int64_t i) {
  return rows <= kInt8SampledRows ? i : i * rows / kInt8SampledRows;
}

/// A product whose error is estimated above this share of its result is computed in floats (LinearWeight::set_int8).
/// Normally distributed operands err by 0.9%, or 1.5% where weights have 63 levels; one channel in sixteen 20 times as
/// large as the others, and its weights a twentieth, by 9%.
inline constexpr double kInt8MostError = 0.04;

/// ||error|| / ||result|| of x w^T (transposed) or x w in 8 bits; depends on the operands alone. NaN where x is not
/// finite.
double int8_error(const Tensor& x, const WeightView& w, bool transposed);

}  // namespace nibble::ops
