#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"

#include <sys/mman.h>

#include <cstdlib>
#include <memory>

#include "nibble/core/base/error.h"

namespace nibble::ops::cpu {

namespace {

struct Free {
  void operator()(std::byte* block) const { std::free(block); }
};

// One huge page, so that a panel costs one entry of the TLB.
std::byte* thread_block() {
  thread_local std::unique_ptr<std::byte, Free> block;
  if (!block) {
    block.reset(static_cast<std::byte*>(std::aligned_alloc(size_t{2} << 20, kGemmWorkspaceBytes)));
    if (!block) throw IoError("", "no memory for the buffers of a matrix product");
    madvise(block.get(), kGemmWorkspaceBytes, MADV_HUGEPAGE);
  }
  return block.get();
}

}  // namespace

GemmWorkspace gemm_workspace(const GemmKernel& kernel) {
  // The largest panels of the kernels; packed rows of half a panel's depth, or an epilogue's right side; a fill.
  constexpr size_t kPanel = size_t{512} << 10, kLeft = size_t{256} << 10, kFill = size_t{kGemmFillBytes};
  const size_t size = static_cast<size_t>(kernel.depth_block) * dtype_size(kernel.compute);
  NIBBLE_CHECK(static_cast<size_t>(kernel.panel_columns * kernel.packed_panels) * size <= kPanel,
               "panels of the kernel");
  NIBBLE_CHECK(static_cast<size_t>(kernel.packed_rows) * (size / 2 + 64) <= kLeft, "packed rows of the kernel");
  std::byte* block = thread_block();
  GemmWorkspace result;
  result.panel = block;
  result.left = block + kPanel;
  result.left_size = kLeft;
  result.fill = result.left + kLeft;
  result.sums = reinterpret_cast<float*>(result.fill + kFill);
  result.sums_size = static_cast<int64_t>((kGemmWorkspaceBytes - kPanel - kLeft - kFill) / sizeof(float));
  return result;
}

}  // namespace nibble::ops::cpu
