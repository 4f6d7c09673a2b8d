#include <algorithm>
#include <optional>

#include <hwy/aligned_allocator.h>
#include "nibble/core/base/parallel_ranges.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/gemm_plan.h"
#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"

namespace nibble::ops::cpu {

namespace {

// Rows of W that threads share the work by: 16 of 576 elements and 64 rows of A take some 5 us.
constexpr int64_t kGrainRows = 16;
// Elements of A that one thread packs, in some 3 us, before it pays to call the others.
constexpr int64_t kPackedAlone = 1 << 16;

/// All of A [M, K] as strips of the right operand, those of one block of the depth after those of another.
class Strips {
 public:
  Strips(const Tensor& a, const GemmKernel& kernel)
      : kernel_(kernel),
        rows_(a.dim(0)),
        depth_(a.dim(1)),
        group_bytes_(kernel.width * static_cast<int64_t>(dtype_size(kernel.compute))),
        memory_(hwy::AllocateAligned<std::byte>(static_cast<size_t>(count() * depth_ * group_bytes_))) {
    const int64_t groups = divide_up(rows_, kernel.lanes);
    parallel_for(groups, rows_ * depth_ > kPackedAlone ? 1 : groups, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) pack(a, g * kernel_.lanes);
    });
  }

  int64_t count() const { return divide_up(rows_, kernel_.width); }
  int64_t columns(int64_t strip) const { return std::min(kernel_.width, rows_ - strip * kernel_.width); }
  std::byte* at(Range k, int64_t strip) const {
    return memory_.get() + (k.begin * count() + strip * k.size()) * group_bytes_;
  }

 private:
  void pack(const Tensor& a, int64_t row) const {
    const auto size = static_cast<int64_t>(dtype_size(kernel_.compute));
    for (int64_t k0 = 0; k0 < depth_; k0 += kernel_.depth_block) {
      const Range k{k0, std::min(depth_, k0 + kernel_.depth_block)};
      kernel_.pack_transposed(a.raw() + (row * depth_ + k0) * size, depth_, std::min(kernel_.lanes, rows_ - row),
                              k.size(), at(k, row / kernel_.width) + row % kernel_.width * kernel_.depth_step * size);
    }
  }

  const GemmKernel& kernel_;
  int64_t rows_, depth_, group_bytes_;
  hwy::AlignedFreeUniquePtr<std::byte[]> memory_;
};

/// Rows of W times all rows of A.
class Product {
 public:
  Product(const PackedProduct& p, const PackedProduct* epilogue, Isa level)
      : p_(p),
        epilogue_(epilogue),
        kernel_(gemm_kernel(level, p.a.dtype())),
        turner_(gemm_kernel(level, DType::f32)),
        size_(static_cast<int64_t>(dtype_size(kernel_.compute))),
        stride_(round_up(p.c.dim(0), kernel_.width)),
        w_(p.w, level),
        a_(p.a, kernel_) {
    if (epilogue == nullptr) return;
    right_.emplace(epilogue->w, level);
    left_.emplace(epilogue->a, kernel_);
  }

  void run(int64_t begin, int64_t end) const {
    const KernelUse use(kernel_.release);
    for (int64_t n = begin; n < end; n += turner_.width) multiply(n, std::min(turner_.width, end - n));
  }

 private:
  void multiply(int64_t n, int64_t count) const {
    const GemmWorkspace workspace = gemm_workspace(kernel_);
    const int64_t depth = p_.a.dim(1);
    const std::byte* w = w_.in_place(kernel_.compute) + n * depth * size_;
    if (epilogue_ != nullptr) fill_right(n, count, workspace.left);
    for (int64_t k0 = 0; k0 < depth; k0 += kernel_.depth_block) {
      const Range k{k0, std::min(depth, k0 + kernel_.depth_block)};
      for (int64_t row = 0; row < count; row += kernel_.rows) {
        for (int64_t strip = 0; strip < a_.count(); ++strip) {
          TileInput input = tile(w + (row * depth + k0) * size_, depth, a_.at(k, strip), k.size()), low;
          if (strip == 0) input.ahead = input.a + kernel_.rows * depth * size_;
          if (epilogue_ != nullptr && k.end == depth) {
            const int64_t rank = epilogue_->a.dim(1);
            low = tile(workspace.left + row * rank * size_, rank, left_->at({0, rank}, strip), rank);
            input.epilogue = &low;
          }
          kernel_.multiply(std::min(kernel_.rows, count - row), a_.columns(strip), input,
                           {.first = k0 == 0,
                            .last = false,
                            .sums = workspace.sums + row * stride_ + strip * kernel_.width,
                            .sums_stride = stride_,
                            .c = nullptr,
                            .c_stride = 0,
                            .dtype = DType::f32,
                            .alpha = 1,
                            .accumulate = false});
        }
      }
    }
    store(n, count, workspace.sums, workspace.sums + turner_.width * stride_);
  }

  /// Rows of the epilogue's right side in the compute type.
  void fill_right(int64_t n, int64_t count, std::byte* out) const {
    const int64_t rank = epilogue_->a.dim(1);
    if (kernel_.compute == DType::bf16) {
      right_->fill(n, n + count, 0, rank, reinterpret_cast<bf16*>(out), rank);
    } else {
      right_->fill(n, n + count, 0, rank, reinterpret_cast<float*>(out), rank);
    }
  }

  TileInput tile(const std::byte* rows, int64_t stride, const std::byte* strip, int64_t depth) const {
    return {.a = rows,
            .a_row_bytes = stride * size_,
            .a_step_bytes = kernel_.depth_step * size_,
            .b = strip,
            .steps = depth / kernel_.depth_step,
            .epilogue = nullptr};
  }

  /// Columns [n, n + count) of c from sums [count, stride_], which packing turns: a strip of f32 is their transpose.
  void store(int64_t n, int64_t count, const float* sums, float* turned) const {
    for (int64_t row = 0; row < count; row += turner_.lanes) {
      turner_.pack_transposed(reinterpret_cast<const std::byte*>(sums + row * stride_), stride_,
                              std::min(turner_.lanes, count - row), p_.c.dim(0),
                              reinterpret_cast<std::byte*>(turned + row));
    }
    kernel_.store(turned, p_.c.dim(0), count, result_from(p_, 0, n, turner_.width));
  }

  const PackedProduct& p_;
  const PackedProduct* epilogue_;
  const GemmKernel& kernel_;
  const GemmKernel& turner_;
  int64_t size_, stride_;
  WeightPanels w_;
  Strips a_;
  std::optional<WeightPanels> right_;
  std::optional<Strips> left_;
};

}  // namespace

bool swapped_fits(const PackedProduct& p, Isa level, const PackedProduct* epilogue) {
  const GemmKernel& kernel = gemm_kernel(level, p.a.dtype());
  return !p.a_transposed && p.w_transposed && !p.widened && p.a.dtype() == kernel.compute &&
         p.w.encoding == WeightEncoding::dense && p.w.dense.dtype() == kernel.compute && p.c.dim(1) >= 2 * p.c.dim(0) &&
         p.a.dim(1) % kernel.depth_step == 0 && p.c.dim(0) <= 2 * kernel.panel_columns &&
         round_up(p.c.dim(0), kernel.width) * std::min(p.a.dim(1), kernel.depth_block) <=
             kernel.depth_block * kernel.panel_columns &&
         (epilogue == nullptr || epilogue->w_transposed);
}

void gemm_swapped(const PackedProduct& p, Isa level, const PackedProduct* epilogue) {
  const Product product(p, epilogue, level);
  parallel_ranges(p.c.dim(1), kGrainRows, [&](int64_t begin, int64_t end) { product.run(begin, end); });
}

}  // namespace nibble::ops::cpu
