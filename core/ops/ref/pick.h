#pragma once
// Plain reference of ops/pick.h and ops/columns.h.

#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
void copy_columns_out(const Real* x, int64_t rows, int64_t width, int64_t begin, int64_t count, Real* part) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < count; ++k) part[t * count + k] = x[t * width + begin + k];
  }
}

template <typename Real>
void copy_columns_in(const Real* part, int64_t rows, int64_t width, int64_t begin, int64_t count, Real* x) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < count; ++k) x[t * width + begin + k] = part[t * count + k];
  }
}

template <typename Real>
void transpose(const Real* x, int64_t rows, int64_t columns, Real* y) {
  for (int64_t i = 0; i < rows * columns; ++i) y[i % columns * rows + i / columns] = x[i];
}

template <typename Real>
void take_columns(const Real* x, const int32_t* columns, int64_t rows, int64_t width, int64_t count, Real* part) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < count; ++k) part[t * count + k] = x[t * width + columns[k]];
  }
}

template <typename Real>
void put_columns(const Real* part, const int32_t* columns, int64_t rows, int64_t width, int64_t count, Real* x) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < count; ++k) x[t * width + columns[k]] = part[t * count + k];
  }
}

template <typename Real>
void put_rows(const Real* part, const int32_t* rows, int64_t count, int64_t width, Real* x) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t d = 0; d < width; ++d) x[rows[n] * width + d] = part[n * width + d];
  }
}

template <typename Real>
void gather_columns(const Real* x, const int32_t* columns, int64_t rows, int64_t width, int64_t count, Real* out) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t r = 0; r < rows; ++r) out[n * rows + r] = x[r * width + columns[n]];
  }
}

template <typename Real>
void scatter_add_columns(const Real* y, const int32_t* columns, int64_t rows, int64_t width, int64_t count, Real* x) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t r = 0; columns[n] >= 0 && r < rows; ++r) x[r * width + columns[n]] += y[n * rows + r];
  }
}

template <typename Real>
void column_squares(const Real* x, int64_t rows, int64_t width, double* out) {
  for (int64_t i = 0; i < width; ++i) {
    out[i] = 0;
    for (int64_t t = 0; t < rows; ++t) out[i] += double{x[t * width + i]} * double{x[t * width + i]};
  }
}

}  // namespace nibble::ops::ref
