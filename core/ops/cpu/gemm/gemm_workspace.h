#pragma once
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"

namespace nibble::ops::cpu {

/// Buffers of one thread for one job of a product. They live as long as the thread and are used again by its next
/// product, so a training step allocates nothing.
struct GemmWorkspace {
  std::byte* fill;         ///< piece of an operand before packing
  std::byte* panel;        ///< packed right operand
  std::byte* left;         ///< packed left operand, or an epilogue's right side
  int64_t left_size;       ///< bytes of left
  float* sums;             ///< f32 sums of the job
  int64_t sums_size;       ///< elements of sums
  std::byte* long_left;    ///< all that lies behind the kernel's panel, for where there are no sums
  int64_t long_left_size;  ///< bytes of long_left
};

/// Bytes one thread keeps for products, one huge page: what a memory plan counts per thread. Of these, of `fill`.
constexpr size_t kGemmWorkspaceBytes = size_t{2} << 20;
constexpr int64_t kGemmFillBytes = int64_t{128} << 10;

/// The calling thread's buffers, cut to the kernel's panel size.
GemmWorkspace gemm_workspace(const GemmKernel& kernel);

}  // namespace nibble::ops::cpu
