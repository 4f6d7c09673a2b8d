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
  // The largest panels of the kernels, of those in 8 bits too; packed rows, or an epilogue's right side.
  constexpr int64_t kPanel = int64_t{512} << 10, kLeft = int64_t{256} << 10;
  const int64_t panel = kernel.depth_block * kernel.panel_columns * static_cast<int64_t>(dtype_size(kernel.compute));
  NIBBLE_CHECK(panel <= kPanel, "panels of the kernel");
  std::byte *const block = thread_block(), *const end = block + kGemmWorkspaceBytes;
  GemmWorkspace result;
  result.fill = block;
  result.panel = block + kGemmFillBytes;
  result.left = result.panel + kPanel;
  result.left_size = kLeft;
  result.sums = reinterpret_cast<float*>(result.left + kLeft);
  result.sums_size = (end - (result.left + kLeft)) / static_cast<int64_t>(sizeof(float));
  result.long_left = result.panel + panel;
  result.long_left_size = end - result.long_left;
  return result;
}

}  // namespace nibble::ops::cpu
