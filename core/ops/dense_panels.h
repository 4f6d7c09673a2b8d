#pragma once
#include "nibble/core/ops/gemm.h"

namespace nibble::ops {

/// A tensor [rows, cols] of f32, bf16 or f16 (possibly unaligned) as the weight of a product. Shares the bytes.
class DensePanels final : public PanelSource {
 public:
  explicit DensePanels(Tensor matrix);

  int64_t rows() const override { return matrix_.dim(0); }
  int64_t cols() const override { return matrix_.dim(1); }
  void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, float* out,
            int64_t stride) const override;
  void fill(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, bf16* out,
            int64_t stride) const override;
  const Tensor* dense() const override { return &matrix_; }

 private:
  Tensor matrix_;
};

}  // namespace nibble::ops
