#include "nibble/core/ops/dense_panels.h"

#include <cstring>

#include "nibble/core/base/avx512.h"
#include "nibble/core/base/cpu_features.h"

namespace nibble::ops {

namespace {

// A panel of trained weights, which are f32, is rounded for every chunk of tokens: 16 at a time where the CPU can.
NIBBLE_AVX512 void narrow_row(const std::byte* from, int64_t count, bf16* to) {
  for (int64_t i = 0; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(avx512::low_bits(count - i));
    _mm256_mask_storeu_epi16(to + i, mask, avx512::narrow(_mm512_maskz_loadu_ps(mask, from + i * 4)));
  }
}

template <typename From, typename To>
void convert_row(const std::byte* from, int64_t count, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(To));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      From value;
      std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
      to[i] = To(static_cast<float>(value));
    }
  }
}

template <typename To>
void fill_rows(const Tensor& matrix, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, To* out,
               int64_t stride) {
  const auto convert = matrix.dtype() == DType::f32    ? convert_row<float, To>
                       : matrix.dtype() == DType::bf16 ? convert_row<bf16, To>
                                                       : convert_row<f16, To>;
  const auto size = static_cast<int64_t>(dtype_size(matrix.dtype()));
  const std::byte* first = matrix.raw() + col_begin * size;
  const bool wide = matrix.dtype() == DType::f32 && isa() >= Isa::avx512;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const std::byte* from = first + row * matrix.dim(1) * size;
    To* to = out + (row - row_begin) * stride;
    if constexpr (std::is_same_v<To, bf16>) {
      if (wide) {
        narrow_row(from, col_end - col_begin, to);
        continue;
      }
    }
    convert(from, col_end - col_begin, to);
  }
}

}  // namespace

DensePanels::DensePanels(Tensor matrix) : matrix_(std::move(matrix)) {
  NIBBLE_CHECK(matrix_.rank() == 2, "a matrix, not " + to_string(matrix_.shape()));
  const DType dtype = matrix_.dtype();
  NIBBLE_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
               "products of " + std::string(dtype_name(dtype)));
}

void DensePanels::fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, float* out,
                       int64_t stride) const {
  fill_rows(matrix_, row_begin, row_end, col_begin, col_end, out, stride);
}

void DensePanels::fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, bf16* out,
                       int64_t stride) const {
  fill_rows(matrix_, row_begin, row_end, col_begin, col_end, out, stride);
}

}  // namespace nibble::ops
