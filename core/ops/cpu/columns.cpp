#include "nibble/core/ops/columns.h"

#include <cstring>

#include "nibble/core/base/parallel.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kRowGrain = 64;

struct Window {
  int64_t tokens;
  size_t row_bytes, offset, part_bytes;
};

Window window_of(const Tensor& x, int64_t begin, const Tensor& part) {
  const size_t size = dtype_size(x.dtype());
  return {x.dim(0), static_cast<size_t>(x.dim(1)) * size, static_cast<size_t>(begin) * size,
          static_cast<size_t>(part.dim(1)) * size};
}

}  // namespace

void copy_columns_out(const Tensor& x, int64_t begin, Tensor& part) {
  const Window w = window_of(x, begin, part);
  const std::byte* from = x.raw() + w.offset;
  std::byte* to = part.mutable_raw();
  parallel_for(w.tokens, kRowGrain, [=](int64_t row, int64_t end) {
    for (size_t t = static_cast<size_t>(row); t < static_cast<size_t>(end); ++t) {
      std::memcpy(to + t * w.part_bytes, from + t * w.row_bytes, w.part_bytes);
    }
  });
}

void copy_columns_in(const Tensor& part, int64_t begin, Tensor& x) {
  const Window w = window_of(x, begin, part);
  const std::byte* from = part.raw();
  std::byte* to = x.mutable_raw() + w.offset;
  parallel_for(w.tokens, kRowGrain, [=](int64_t row, int64_t end) {
    for (size_t t = static_cast<size_t>(row); t < static_cast<size_t>(end); ++t) {
      std::memcpy(to + t * w.row_bytes, from + t * w.part_bytes, w.part_bytes);
    }
  });
}

namespace {

template <typename T>
void transpose_as(const Tensor& x, Tensor& y) {
  constexpr int64_t kLine = 64 / sizeof(T);  // columns of x whose elements share cache lines
  const T* from = x.data<const T>();
  T* to = y.data<T>();
  const int64_t rows = x.dim(0), columns = x.dim(1);
  parallel_for(columns, kLine, [=](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = begin; column < end; ++column) to[column * rows + row] = from[row * columns + column];
    }
  });
}

}  // namespace

void transpose(const Tensor& x, Tensor& y) {
  (x.dtype() == DType::f32    ? transpose_as<float>
   : x.dtype() == DType::bf16 ? transpose_as<bf16>
                              : transpose_as<f16>)(x, y);
}

}  // namespace nibble::ops::cpu
