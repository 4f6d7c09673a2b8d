#include "nibble/core/ops/pick.h"

#include <algorithm>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_each.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kRowGrain = 64;
constexpr int64_t kColumnGrain = 128;

template <typename Element>
void take(const Element* x, int64_t rows, int64_t width, const int32_t* column, int64_t count, Element* part) {
  parallel_each(rows, kRowGrain, [=](int64_t t) {
    for (int64_t k = 0; k < count; ++k) part[t * count + k] = x[t * width + column[k]];
  });
}

template <typename From, typename To>
void put(const From* part, int64_t rows, int64_t width, const int32_t* column, int64_t count, To* x) {
  parallel_each(rows, kRowGrain, [=](int64_t t) {
    for (int64_t k = 0; k < count; ++k) {
      x[t * width + column[k]] = static_cast<To>(static_cast<float>(part[t * count + k]));
    }
  });
}

template <typename Element>
void squares(const Element* x, int64_t rows, int64_t width, double* out) {
  parallel_for(width, kColumnGrain, [=](int64_t begin, int64_t end) {
    std::fill(out + begin, out + end, 0.0);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = begin; i < end; ++i) {
        const double value = static_cast<float>(x[t * width + i]);
        out[i] += value * value;
      }
    }
  });
}

}  // namespace

void take_columns(const Tensor& x, const Tensor& columns, Tensor& part) {
  const int32_t* column = columns.data<const int32_t>();
  const int64_t count = columns.numel();
  if (x.dtype() == DType::bf16) return take(x.data<const bf16>(), x.dim(0), x.dim(1), column, count, part.data<bf16>());
  take(x.data<const float>(), x.dim(0), x.dim(1), column, count, part.data<float>());
}

void put_columns(const Tensor& part, const Tensor& columns, Tensor& x) {
  const int32_t* column = columns.data<const int32_t>();
  const int64_t count = columns.numel(), rows = x.dim(0), width = x.dim(1);
  if (x.dtype() == DType::f32) return put(part.data<const float>(), rows, width, column, count, x.data<float>());
  if (part.dtype() == DType::f32) return put(part.data<const float>(), rows, width, column, count, x.data<bf16>());
  put(part.data<const bf16>(), rows, width, column, count, x.data<bf16>());
}

void put_rows(const Tensor& part, const Tensor& rows, Tensor& x) {
  const float* from = part.data<const float>();
  float* to = x.data<float>();
  const int32_t* row = rows.data<const int32_t>();
  const int64_t width = x.dim(1);
  parallel_each(rows.numel(), kRowGrain, [=](int64_t n) { std::copy_n(from + n * width, width, to + row[n] * width); });
}

void gather_columns(const Tensor& x, const Tensor& columns, Tensor& out) {
  const float* from = x.data<const float>();
  float* to = out.data<float>();
  const int32_t* column = columns.data<const int32_t>();
  const int64_t r = x.dim(0), width = x.dim(1);
  parallel_each(columns.numel(), kRowGrain, [=](int64_t n) {
    for (int64_t i = 0; i < r; ++i) to[n * r + i] = from[i * width + column[n]];
  });
}

void scatter_add_columns(const Tensor& y, const Tensor& columns, Tensor& x) {
  const float* from = y.data<const float>();
  float* to = x.data<float>();
  const int32_t* column = columns.data<const int32_t>();
  const int64_t r = x.dim(0), width = x.dim(1), count = columns.numel();
  parallel_each(r, 1, [=](int64_t i) {
    for (int64_t n = 0; n < count; ++n) {
      if (column[n] >= 0) to[i * width + column[n]] += from[n * r + i];
    }
  });
}

void column_squares(const Tensor& x, Tensor& out) {
  double* sums = out.data<double>();
  if (x.dtype() == DType::bf16) return squares(x.data<const bf16>(), x.dim(0), x.dim(1), sums);
  if (x.dtype() == DType::f16) return squares(x.data<const f16>(), x.dim(0), x.dim(1), sums);
  squares(x.data<const float>(), x.dim(0), x.dim(1), sums);
}

}  // namespace nibble::ops::cpu
