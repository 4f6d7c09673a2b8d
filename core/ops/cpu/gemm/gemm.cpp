#include "nibble/core/ops/gemm.h"

#include <atomic>

#include "nibble/core/base/isa_levels.h"
#include "nibble/core/ops/cpu/gemm/bf16_products.h"
#include "nibble/core/ops/cpu/gemm/gemm_openblas.h"

namespace nibble::ops::cpu {

namespace {

std::atomic<Bf16Products> chosen = Bf16Products::bf16;

bool widens(const Tensor& a) {
  return a.dtype() == DType::bf16 && (bf16_products() == Bf16Products::f32 || !has_bf16(isa()));
}

void product(const PackedProduct& p) {
  if (p.c.numel() == 0) return;
  if (p.a.numel() == 0) {
    if (!p.accumulate) p.c.zero();
    return;
  }
  if (prefers_openblas() && gemm_openblas(p)) return;
  if (few_rows_fit(p, isa())) {
    gemm_few_rows(p, isa());
  } else if (thin_fits(p, isa())) {
    gemm_thin(p, isa());
  } else if (swapped_fits(p, isa())) {
    gemm_swapped(p, isa());
  } else {
    gemm_packed(p, isa());
  }
}

void product(const PackedProduct& p, const LowRankEpilogue* epilogue) {
  if (epilogue == nullptr) return product(p);
  const WeightView right(epilogue->right);
  const PackedProduct low = {.a = epilogue->left,
                             .w = right,
                             .w_transposed = epilogue->right_transposed,
                             .c = p.c,
                             .accumulate = true,
                             .widened = widens(epilogue->left)};
  const bool own = !prefers_openblas() && !few_rows_fit(p, isa());
  if (own && p.c.numel() > 0 && p.a.numel() > 0 && gemm_packed_fuses(p, low, isa())) {
    (swapped_fits(p, isa(), &low) ? gemm_swapped : gemm_packed)(p, isa(), &low);
  } else {
    product(p);
    product(low);
  }
}

}  // namespace

void matmul_nt(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate, float alpha,
               const LowRankEpilogue* epilogue) {
  product({.a = a, .w = w, .c = c, .accumulate = accumulate, .alpha = alpha, .widened = widens(a)}, epilogue);
}

void matmul_nn(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate, float alpha,
               const LowRankEpilogue* epilogue) {
  product(
      {.a = a, .w = w, .w_transposed = false, .c = c, .accumulate = accumulate, .alpha = alpha, .widened = widens(a)},
      epilogue);
}

void matmul_tn(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate, float alpha) {
  const WeightView w(b);
  product({.a = a,
           .a_transposed = true,
           .w = w,
           .w_transposed = false,
           .c = c,
           .accumulate = accumulate,
           .alpha = alpha,
           .widened = widens(a)});
}

}  // namespace nibble::ops::cpu

namespace nibble::ops {

void set_bf16_products(Bf16Products products) { cpu::chosen.store(products, std::memory_order_relaxed); }

Bf16Products bf16_products() { return cpu::chosen.load(std::memory_order_relaxed); }

}  // namespace nibble::ops
