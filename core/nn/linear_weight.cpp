#include "nibble/core/nn/linear_weight.h"

#include "nibble/core/ops/int8_product.h"

namespace nibble {

void LinearWeight::multiply(const Tensor& x, const ops::WeightView& w, bool transposed, Tensor& y, bool accumulate,
                            const ops::LowRankEpilogue* epilogue) const {
  constexpr int64_t kFewRows = 4;
  if (!int8_ || trainable() || x.dim(0) <= kFewRows) {
    return (transposed ? ops::matmul_nt : ops::matmul_nn)(x, w, y, accumulate, 1.0f, epilogue);
  }
  ops::Int8Rows rows(*int8_, x);
  ops::int8_round(x, rows);
  (transposed ? ops::int8_matmul_nt : ops::int8_matmul_nn)(rows, w, y, accumulate, epilogue);
}

}  // namespace nibble
