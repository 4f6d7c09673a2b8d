#pragma once
#include <optional>

#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/cpu/four_bit_dots.h"
#include "nibble/core/ops/cpu/four_bit_expand.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

/// A 4-bit matrix as the weight of a product: the piece a product asks for is expanded right then, from the packed
/// bytes and (double-quantized) scales as they are stored, mapped or not. Nothing of the matrix is copied; the double
/// quantization of a scale is undone each time it is used, which costs a few operations per block.
class Nf4Panels final : public ops::PanelSource {
 public:
  /// Shares the tensors of `matrix`. Throws InputError naming `name` when their sizes do not fit its shape. `level`:
  /// which expander to use (tests); not above isa().
  explicit Nf4Panels(const QuantizedMatrix& matrix, const std::string& name, Isa level = isa());

  const QuantizedMatrix& matrix() const { return matrix_; }
  QuantizedMatrix& matrix() { return matrix_; }
  int64_t rows() const override { return matrix_.out_features(); }
  int64_t cols() const override { return matrix_.in_features(); }
  void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, float* out,
            int64_t stride) const override;
  void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, bf16* out,
            int64_t stride) const override;
  /// Where blocks do not cross row ends, on CPUs with bf16 instructions.
  bool dots(int64_t row_begin, int64_t row_end, const bf16* x, float* y) const override;

  /// absmax of the blocks [begin, end).
  void scales(int64_t begin, int64_t end, float* out) const;

 private:
  template <int64_t part>
  void scales_of_parts(int64_t begin, int64_t count, float* out) const;
  template <typename Out>
  void fill_rows(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, Out* out,
                 int64_t stride) const;

  QuantizedMatrix matrix_;
  Isa level_;
  const Nf4Expander& expander_;
  Nf4DotsTable dots_table_;
  std::array<float, 256> nested_map_{};                     // a copy, because the tensor may be unaligned
  std::optional<std::array<uint8_t, 1024>> nested_planes_;  // the same by bytes, where nf4_scales_avx512_vbmi runs
};

}  // namespace nibble
