#include "nibble/core/ops/gemm.h"

#include "nibble/core/ops/cpu/gemm_libraries.h"

namespace nibble::ops {

namespace {

void check(const cpu::PackedProduct& p) {
  NIBBLE_CHECK(p.a.rank() == 2 && p.c.rank() == 2, "matrices");
  NIBBLE_CHECK(p.a.dtype() == DType::f32 || p.a.dtype() == DType::bf16, "products compute in f32 or bf16");
  NIBBLE_CHECK(p.c.dtype() == DType::f32 || p.c.dtype() == DType::bf16, "results are f32 or bf16");
  const int64_t depth = p.a.dim(p.a_transposed ? 0 : 1);
  NIBBLE_CHECK(depth == (p.w_transposed ? p.w.cols() : p.w.rows()) && p.c.dim(0) == p.a.dim(p.a_transposed ? 1 : 0) &&
                   p.c.dim(1) == (p.w_transposed ? p.w.rows() : p.w.cols()),
               "product of " + to_string(p.a.shape()) + " and " + to_string({p.w.rows(), p.w.cols()}) + " into " +
                   to_string(p.c.shape()));
}

void product(const cpu::PackedProduct& p) {
  check(p);
  if (p.c.numel() == 0) return;
  if (p.a.numel() == 0) {
    if (!p.accumulate) p.c.zero();
    return;
  }
  if (cpu::gemm_by_library(p, cpu::gemm_engine())) return;
  if (cpu::few_rows_fit(p, isa())) {
    cpu::gemm_few_rows(p, isa());
  } else if (cpu::thin_fits(p, isa())) {
    cpu::gemm_thin(p, isa());
  } else {
    cpu::gemm_packed(p, isa());
  }
}

void product(const cpu::PackedProduct& p, const LowRankEpilogue* epilogue) {
  if (epilogue == nullptr) return product(p);
  const WeightView right(epilogue->right);
  const cpu::PackedProduct low = {
      .a = epilogue->left, .w = right, .w_transposed = epilogue->right_transposed, .c = p.c, .accumulate = true};
  check(p);
  check(low);
  const bool own = cpu::gemm_engine() == cpu::GemmEngine::own && !cpu::few_rows_fit(p, isa());
  if (own && p.c.numel() > 0 && p.a.numel() > 0 && cpu::gemm_packed_fuses(p, low, isa())) {
    cpu::gemm_packed(p, isa(), &low);
  } else {
    product(p);
    product(low);
  }
}

}  // namespace

void matmul_nt(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate, float alpha,
               const LowRankEpilogue* epilogue) {
  product({.a = a, .w = w, .c = c, .accumulate = accumulate, .alpha = alpha}, epilogue);
}

void matmul_nn(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate, float alpha,
               const LowRankEpilogue* epilogue) {
  product({.a = a, .w = w, .w_transposed = false, .c = c, .accumulate = accumulate, .alpha = alpha}, epilogue);
}

void matmul_tn(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate, float alpha) {
  NIBBLE_CHECK(c.dtype() == DType::f32, "weight gradients are f32");
  const WeightView w(b);
  product(
      {.a = a, .a_transposed = true, .w = w, .w_transposed = false, .c = c, .accumulate = accumulate, .alpha = alpha});
}

}  // namespace nibble::ops
