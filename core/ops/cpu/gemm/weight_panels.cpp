#include "nibble/core/ops/cpu/gemm/weight_panels.h"

#include <cstring>

#if defined(__x86_64__)
#include "nibble/core/ops/cpu/x86/avx2.h"
#include "nibble/core/ops/cpu/x86/avx512.h"
#endif
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble::ops::cpu {

namespace {

#if defined(__x86_64__)
// A panel of trained weights, which are f32, is rounded for every chunk of tokens: 16 at a time where the CPU can.
// Stores are masked only at the end: reading what one wrote right after it takes the CPU a pause.
NIBBLE_AVX512 void narrow_row(const std::byte* from, int64_t count, bf16* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), avx512::narrow(_mm512_loadu_ps(from + i * 4)));
  }
  const auto mask = static_cast<__mmask16>(avx512::low_bits(count - i));
  if (mask != 0) _mm256_mask_storeu_epi16(to + i, mask, avx512::narrow(_mm512_maskz_loadu_ps(mask, from + i * 4)));
}

NIBBLE_AVX2 void widen_row_avx2(const bf16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, avx2::widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

NIBBLE_AVX512 void widen_row(const bf16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm512_storeu_ps(to + i, avx512::widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
  const auto mask = static_cast<__mmask16>(avx512::low_bits(count - i));
  if (mask != 0) _mm512_mask_storeu_ps(to + i, mask, avx512::widen(_mm256_maskz_loadu_epi16(mask, from + i)));
}
#endif

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

void narrow(const std::byte* from, int64_t count, bf16* to, [[maybe_unused]] Isa level) {
#if defined(__x86_64__)
  if (level >= Isa::avx512) return narrow_row(from, count, to);
#endif
  convert_row<float>(from, count, to);
}

template <typename To>
void fill_dense(const WeightView& w, Isa level, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                To* out, int64_t stride) {
  const Tensor& matrix = w.dense;
  const auto convert = matrix.dtype() == DType::f32    ? convert_row<float, To>
                       : matrix.dtype() == DType::bf16 ? convert_row<bf16, To>
                                                       : convert_row<f16, To>;
  const auto size = static_cast<int64_t>(dtype_size(matrix.dtype()));
  const int64_t rows = row_end - row_begin, columns = col_end - col_begin, width = matrix.dim(1);
  const StoredWeight next = stored(w);
  const bool at_once = columns == width && stride == width;  // one after another
  for (int64_t row = row_begin; row < row_end; ++row) {
    fetch_next(next, row, rows, col_begin, col_end);
    if (at_once && row > row_begin) continue;
    const std::byte* from = matrix.raw() + (row * width + col_begin) * size;
    const int64_t count = at_once ? rows * width : columns;
    To* to = out + (row - row_begin) * stride;
    if constexpr (std::is_same_v<To, bf16>) {
      if (matrix.dtype() == DType::f32) {
        narrow(from, count, to, level);
        continue;
      }
    } else if (matrix.dtype() == DType::bf16) {
      widen(reinterpret_cast<const bf16*>(from), count, to, level);
      continue;
    }
    convert(from, count, to);
  }
}

}  // namespace

WeightPanels::WeightPanels(const WeightView& w, Isa level) : w_(w), level_(level) {
  if (w.encoding == WeightEncoding::four_bit) four_bit_.emplace(w, level);
}

template <typename Out>
void WeightPanels::fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, Out* out,
                        int64_t stride) const {
  switch (w_.encoding) {
    case WeightEncoding::dense:
      return fill_dense(w_, level_, row_begin, row_end, col_begin, col_end, out, stride);
    case WeightEncoding::four_bit:
      return four_bit_->fill(row_begin, row_end, col_begin, col_end, out, stride);
  }
}

template void WeightPanels::fill(int64_t, int64_t, int64_t, int64_t, float*, int64_t) const;
template void WeightPanels::fill(int64_t, int64_t, int64_t, int64_t, bf16*, int64_t) const;

const std::byte* WeightPanels::in_place(DType compute) const {
  return w_.encoding == WeightEncoding::dense && w_.dense.dtype() == compute ? w_.dense.raw() : nullptr;
}

RowsForDots rows_for_dots(const WeightPanels& w, DType x, const GemmKernel& kernel) {
  const std::byte* narrow = w.in_place(DType::bf16);
  if (kernel.dots_bf16 != nullptr && narrow != nullptr) {
    return {narrow, static_cast<int64_t>(sizeof(bf16)), kernel.dots_bf16};
  }
  return {x == kernel.compute ? w.in_place(x) : nullptr, static_cast<int64_t>(dtype_size(kernel.compute)), kernel.dots};
}

void widen(const bf16* from, int64_t count, float* to, [[maybe_unused]] Isa level) {
#if defined(__x86_64__)
  if (level >= Isa::avx512) return widen_row(from, count, to);
  if (level >= Isa::avx2) return widen_row_avx2(from, count, to);
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void dequantize(const WeightView& w, Tensor& out) {
  if (w.encoding == WeightEncoding::dense) return cast(w.dense, out);
  constexpr int64_t kGrain = int64_t{1} << 16;  // elements of a piece of work: 256 KB of results, some 20 us
  const WeightPanels panels(w, isa());
  const int64_t cols = w.cols();
  float* to = out.data<float>();
  parallel_for(w.rows(), std::max(int64_t{1}, kGrain / std::max(int64_t{1}, cols)),
               [&](int64_t begin, int64_t end) { panels.fill(begin, end, 0, cols, to + begin * cols, cols); });
}

void block_scales(const FourBitMatrix& w, Tensor& out) {
  FourBitScales(w, isa()).read(0, w.blocks(), out.data<float>());
}

}  // namespace nibble::ops::cpu
