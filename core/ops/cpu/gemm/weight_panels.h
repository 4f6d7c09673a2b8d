#pragma once
#include <optional>

#include "nibble/core/ops/cpu/four_bit/four_bit_panels.h"
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
  /// W[row_begin:row_end, col_begin:col_end] as up to 16 columns of a strip of the bf16 kernel of AVX512_BF16
  /// (GemmKernel::pack_transposed), with the products of fill and that. False, and nothing done, where that is the only
  /// way.
  bool fill_strip(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, std::byte* strip) const {
    return four_bit_ && four_bit_->fill_strip(row_begin, row_end, col_begin, col_end, strip);
  }
  /// y[i] = sum over k of W[row_begin + i, k] * x[k], with W or its factors rounded to bf16 and f32 sums in an order
  /// that depends on cols() only. False, and nothing done, where fill is the faster way or the only one.
  bool dots(int64_t row_begin, int64_t row_end, const bf16* x, float* y) const;
  /// The matrix where it is stored as a product in `compute` reads it; else null.
  const std::byte* in_place(DType compute) const;

 private:
  const WeightView& w_;
  Isa level_;
  std::optional<FourBitPanels> four_bit_;
};

}  // namespace nibble::ops::cpu
