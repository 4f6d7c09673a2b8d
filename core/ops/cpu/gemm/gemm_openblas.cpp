#include "nibble/core/ops/cpu/gemm/gemm_openblas.h"

#include <cblas.h>
#include <dlfcn.h>

#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>

#include "nibble/core/base/error.h"

namespace nibble::ops::cpu {

namespace {

using Sgemm = decltype(&cblas_sgemm);

// Loaded when a product first asks for it: OpenBLAS takes its buffers as it is loaded, and under a low limit on address
// space (ulimit -v) it tries for ever, before main.
Sgemm load_sgemm() {
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  auto* sgemm = library == nullptr ? nullptr : reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  if (sgemm == nullptr) {
    throw UsageError("libopenblas.so.0 cannot be loaded", "install OpenBLAS, or set NIBBLE_GEMM=own", "NIBBLE_GEMM");
  }
  return sgemm;
}

bool asked_for() {
  const char* set = std::getenv("NIBBLE_GEMM");
  const std::string_view library = set == nullptr ? "" : set;
  if (library.empty()) return isa() == Isa::baseline;
  if (library != "own" && library != "openblas") {
    throw UsageError("NIBBLE_GEMM=" + std::string(library) + " is not known", "use own or openblas");
  }
  return library == "openblas";
}

}  // namespace

bool prefers_openblas() {
  static const bool prefers = asked_for();
  return prefers;
}

bool gemm_openblas(const PackedProduct& p) {
  const Tensor& w = p.w.dense;  // undefined where it is not dense
  if (!w || w.dtype() != DType::f32 || p.a.dtype() != DType::f32 || p.c.dtype() != DType::f32) return false;
  const int64_t rows = p.c.dim(0), columns = p.c.dim(1), depth = p.a.dim(p.a_transposed ? 0 : 1);
  constexpr int64_t kMost = std::numeric_limits<blasint>::max();
  if (rows > kMost || columns > kMost || depth > kMost) return false;

  static const Sgemm sgemm = load_sgemm();
  static std::mutex one_caller;  // built with other threads than OpenMP's it corrupts concurrent products
  const std::lock_guard lock(one_caller);
  sgemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.w_transposed ? CblasTrans : CblasNoTrans,
        static_cast<blasint>(rows), static_cast<blasint>(columns), static_cast<blasint>(depth), p.alpha,
        p.a.data<const float>(), static_cast<blasint>(p.a.dim(1)), w.data<const float>(),
        static_cast<blasint>(w.dim(1)), p.accumulate ? 1.0f : 0.0f, p.c.data<float>(), static_cast<blasint>(columns));
  return true;
}

}  // namespace nibble::ops::cpu
