#pragma once
#include <optional>

#include "nibble/core/ops/cpu/four_bit/four_bit_panels.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/stored_weight.h"

namespace nibble::ops::cpu {

/// to[i] = from[i], at `level`.
void widen(const bf16* from, int64_t count, float* to, Isa level);

/// The weight of one product as its kernels read it: cache-sized pieces, expanded right before use. Thread-safe.
class WeightPanels {
 public:
  /// w must outlive it. level: whose kernels fill the pieces; not above isa().
  explicit WeightPanels(const WeightView& w, Isa level);

  int64_t cols() const { return w_.cols(); }
  Isa level() const { return level_; }
  StoredWeight stored() const { return cpu::stored(w_); }
  /// Writes W[row_begin:row_end, col_begin:col_end] to out, f32 or bf16, row-major with `stride` elements between rows.
  template <typename Out>
  void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, Out* out, int64_t stride) const;
  /// W[row_begin:row_end, col_begin:col_end] as columns of a strip of a kernel with `strips`, at most a register
  /// (GemmKernel::pack_transposed), with the products of fill and that; rounded: to bf16. False, and nothing done,
  /// where that is the only way.
  bool fill_strip(const FourBitStrips& strips, bool rounded, int64_t row_begin, int64_t row_end, int64_t col_begin,
                  int64_t col_end, std::byte* strip) const {
    return four_bit_ && four_bit_->fill_strip(strips, rounded, row_begin, row_end, col_begin, col_end, strip);
  }
  /// The same with rows as depths of strips that are strip_bytes apart (GemmKernel::pack_rows), rounded to bf16.
  bool fill_depths(const FourBitStrips& strips, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                   std::byte* strip, int64_t strip_bytes) const {
    return four_bit_ && four_bit_->fill_depths(strips, row_begin, row_end, col_begin, col_end, strip, strip_bytes);
  }
  /// y[i] = sum over k of W[row_begin + i, k] * x[k] in an order that depends on cols() only; x: f32, or bf16, for
  /// which W or its factors are rounded to bf16. False, and nothing done, where fill is the faster way or the only one.
  template <typename X>
  bool dots(int64_t row_begin, int64_t row_end, const X* x, float* y) const {
    return four_bit_ && four_bit_->dots(row_begin, row_end, x, y);
  }
  /// The matrix where it is stored as a product in `compute` reads it; else null.
  const std::byte* in_place(DType compute) const;

 private:
  const WeightView& w_;
  Isa level_;
  std::optional<FourBitPanels> four_bit_;
};

/// How `kernel` multiplies rows of a weight with few rows of x: where they lie, or, where first is null, filled in the
/// kernel's type.
struct RowsForDots {
  const std::byte* first = nullptr;
  int64_t size;  ///< bytes of an element
  decltype(GemmKernel::dots) dots;
};
RowsForDots rows_for_dots(const WeightPanels& w, DType x, const GemmKernel& kernel);

}  // namespace nibble::ops::cpu
