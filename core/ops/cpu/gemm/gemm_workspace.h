#pragma once
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"

namespace nibble::ops::cpu {

/// Buffers of one thread for one job of a product. They live as long as the thread and are used again by its next
/// product, so a training step allocates nothing.
struct GemmWorkspace {
  std::byte* panel;   ///< packed right operand
  std::byte* left;    ///< packed left operand
  int64_t left_size;  ///< bytes of left
  std::byte* fill;    ///< piece of the right operand before packing
  float* sums;        ///< f32 sums of the job
  int64_t sums_size;  ///< elements of sums
};

/// Bytes one thread keeps for products, one huge page: what a memory plan counts per thread. Of these, of `fill`.
constexpr size_t kGemmWorkspaceBytes = size_t{2} << 20;
constexpr int64_t kGemmFillBytes = int64_t{128} << 10;

/// The calling thread's buffers, cut to the kernel's panel size.
GemmWorkspace gemm_workspace(const GemmKernel& kernel);

}  // namespace nibble::ops::cpu
