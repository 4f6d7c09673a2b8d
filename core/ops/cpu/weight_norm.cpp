#include "nibble/core/ops/weight_norm.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/element_type.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kRowGrain = 16;
constexpr int64_t kColumnGrain = 64;  // one or two cache lines of columns at a time

double square_sum(const float* row, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{row[i]} * row[i];
  return sum;
}

template <typename Element>
void scale_columns(const Element* x, int64_t rows, int64_t columns, const float* factors, float offset, Element* y) {
  parallel_each(rows, kRowGrain, [=](int64_t t) {
    for (int64_t n = 0; n < columns; ++n) {
      y[t * columns + n] = Element(static_cast<float>(x[t * columns + n]) * (factors[n] + offset));
    }
  });
}

template <typename Gradient, typename Element>
void magnitude_gradient(const Gradient* dy, const Element* x, int64_t rows, int64_t columns, const float* norms,
                        float* sums) {
  parallel_for(columns, kColumnGrain, [=](int64_t begin, int64_t end) {
    double partial[kColumnGrain] = {};
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t n = begin; n < end; ++n) {
        partial[n - begin] += double{static_cast<float>(dy[t * columns + n])} * static_cast<float>(x[t * columns + n]);
      }
    }
    for (int64_t n = begin; n < end; ++n) sums[n] += static_cast<float>(partial[n - begin] / norms[n]);
  });
}

}  // namespace

void row_squares(const Tensor& w, Tensor& squares) {
  const float* rows = w.data<const float>();
  double* out = squares.data<double>();
  const int64_t in = w.dim(1);
  parallel_each(w.dim(0), kRowGrain, [=](int64_t n) { out[n] = square_sum(rows + n * in, in); });
}

void low_rank_norms(const Tensor& magnitudes, const Tensor& w_squares, const Tensor& aw, const Tensor& b,
                    const Tensor& gram, float s, Tensor& norms, Tensor& factors) {
  const int64_t count = b.dim(0), r = b.dim(1);
  const float *m = magnitudes.data<const float>(), *cross = aw.data<const float>(), *g = gram.data<const float>();
  const float* left = b.data<const float>();
  const double* squares = w_squares.data<const double>();
  float *norm = norms.data<float>(), *factor = factors.data<float>();
  parallel_each(count, kRowGrain, [=](int64_t n) {
    const float* row = left + n * r;
    double once = 0, twice = 0;  // <w, s b A> and |b A|^2
    for (int64_t i = 0; i < r; ++i) {
      once += double{row[i]} * cross[i * count + n];
      double sum = 0;
      for (int64_t j = 0; j < r; ++j) sum += double{row[j]} * g[i * r + j];
      twice += row[i] * sum;
    }
    const double square = squares[n] + 2.0 * s * once + double{s} * s * twice;
    norm[n] = static_cast<float>(std::sqrt(std::max(square, 0.0)));
    factor[n] = m[n] / norm[n];
  });
}

void set_row_norms(const Tensor& lengths, Tensor& rows) {
  const float* norms = lengths.data<const float>();
  float* values = rows.data<float>();
  const int64_t in = rows.dim(1);
  parallel_each(rows.dim(0), kRowGrain, [=](int64_t n) {
    const double norm = std::sqrt(square_sum(values + n * in, in));
    if (norm == 0) return;
    const auto factor = static_cast<float>(norms[n] / norm);
    for (int64_t i = 0; i < in; ++i) values[n * in + i] *= factor;
  });
}

void scale_columns(const Tensor& x, const Tensor& factors, float offset, Tensor& y) {
  const float* f = factors.data<const float>();
  with_element(x, [&]<typename Element>(Element) {
    scale_columns(x.data<const Element>(), x.dim(0), x.dim(1), f, offset, y.data<Element>());
  });
}

void scale_columns_backward(const Tensor& dy, const Tensor& x, const Tensor& norms, Tensor& dmagnitudes) {
  const float* n = norms.data<const float>();
  float* sums = dmagnitudes.data<float>();
  with_element(dy, [&]<typename Gradient>(Gradient) {
    with_element(x, [&]<typename Element>(Element) {
      magnitude_gradient(dy.data<const Gradient>(), x.data<const Element>(), dy.dim(0), dy.dim(1), n, sums);
    });
  });
}

}  // namespace nibble::ops::cpu
