// The products in 8 bits as callers see them (see dispatch.cpp): int8/int8_product.h.

#include "nibble/core/ops/dispatch/dispatch.h"

namespace nibble::ops {

Int8Rows::Int8Rows(MemoryPool& pool, const Tensor& x) : depth(x.dim(1)), dtype(x.dtype()) {
  const int64_t count = x.dim(0), groups = (depth + kInt8Group - 1) / kInt8Group;
  codes = Tensor::empty(pool, {groups, count, kInt8Group}, DType::i8, "rows in 8 bits");
  scales = Tensor::empty(pool, {groups, count}, DType::f32, "scales of rows in 8 bits");
  sums = Tensor::empty(pool, {groups, count}, DType::i32, "sums of rows in 8 bits");
}

namespace {

void check(const Int8Rows& x, const Shape& w, const Tensor& c, const LowRankEpilogue* epilogue) {
  NIBBLE_CHECK(c.shape() == (Shape{x.rows(), w[1]}) && x.depth == w[0], "product in 8 bits: shapes");
  NIBBLE_CHECK(c.dtype() == DType::f32 || c.dtype() == DType::bf16, "results are f32 or bf16");
  NIBBLE_CHECK(!epilogue || epilogue->left.dtype() == x.dtype, "an epilogue is of its product's dtype");
}

}  // namespace

void int8_round(const Tensor& x, Int8Rows& rows) {
  NIBBLE_CHECK(x.shape() == (Shape{rows.rows(), rows.depth}) && x.dtype() == rows.dtype, "int8_round: rows");
  on(x).int8_round(x, rows);
}

void int8_matmul_nt(const Int8Rows& x, const WeightView& w, Tensor& c, bool accumulate,
                    const LowRankEpilogue* epilogue) {
  check(x, {w.cols(), w.rows()}, c, epilogue);
  on(c).int8_matmul_nt(x, w, c, accumulate, epilogue);
}

void int8_matmul_nn(const Int8Rows& x, const WeightView& w, Tensor& c, bool accumulate,
                    const LowRankEpilogue* epilogue) {
  check(x, {w.rows(), w.cols()}, c, epilogue);
  on(c).int8_matmul_nn(x, w, c, accumulate, epilogue);
}

double int8_error(const Tensor& x, const WeightView& w, bool transposed) {
  NIBBLE_CHECK(x.dim(1) == (transposed ? w.cols() : w.rows()), "int8_error: shapes");
  return on(x).int8_error(x, w, transposed);
}

}  // namespace nibble::ops
