#include <cblas.h>

#include <limits>
#include <mutex>

#include "nibble/core/ops/cpu/gemm_libraries.h"

namespace nibble::ops::cpu {

bool gemm_openblas(const PackedProduct& p) {
  const Tensor& w = p.w.dense;  // undefined where it is not dense
  if (!w || w.dtype() != DType::f32 || p.a.dtype() != DType::f32 || p.c.dtype() != DType::f32) return false;
  const int64_t rows = p.c.dim(0), columns = p.c.dim(1), depth = p.a.dim(p.a_transposed ? 0 : 1);
  constexpr int64_t kMost = std::numeric_limits<blasint>::max();
  if (rows > kMost || columns > kMost || depth > kMost) return false;

  static std::mutex one_caller;  // built with other threads than OpenMP's it corrupts concurrent products
  const std::lock_guard lock(one_caller);
  cblas_sgemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.w_transposed ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(rows), static_cast<blasint>(columns), static_cast<blasint>(depth), p.alpha,
              p.a.data<const float>(), static_cast<blasint>(p.a.dim(1)), w.data<const float>(),
              static_cast<blasint>(w.dim(1)), p.accumulate ? 1.0f : 0.0f, p.c.data<float>(),
              static_cast<blasint>(columns));
  return true;
}

}  // namespace nibble::ops::cpu
