// Products in 8 bits: the blocked product of gemm_packed.cpp with groups of depth in the place of single steps.

#include <algorithm>

#include "nibble/core/base/cpu_grants.h"
#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/panel_packer.h"
#include "nibble/core/ops/cpu/int8/int8_panels.h"

namespace nibble::ops::cpu {

namespace {

/// A product, what is prepared once of its weight, and the kernel in floats that adds the epilogue and writes c.
struct Int8Product {
  const Int8Rows& x;
  const Int8Panels& w;
  const Int8Kernel& kernel;
  const GemmKernel& floats;
  Tensor& c;
  bool accumulate;
  const PackedProduct* epilogue;  ///< null: none
  const WeightPanels* epilogue_w;
};

/// One job: rows m and columns n of C.
class Job {
 public:
  Job(const Int8Product& product, const GemmPlan& plan, Range m, Range n)
      : p_(product), plan_(plan), m_(m), n_(n), workspace_(gemm_workspace(product.floats)) {
    sums_stride_ = round_up(n.size(), std::max(p_.kernel.width, p_.floats.width));
    keeps_sums_ = plan.depth > plan.depth_block;
    NIBBLE_CHECK((keeps_sums_ ? m.size() : kLeftGroup) * sums_stride_ <= workspace_.sums_size, "sums of a job");
    if (product.epilogue) {
      packer_.emplace(*product.epilogue, *product.epilogue_w, p_.floats, workspace_.left, workspace_.fill);
    }
    scales_ = reinterpret_cast<float*>(workspace_.left + workspace_.left_size - kScalesBytes);
  }

  // What is left of the epilogue's right side: a scale for every group and column of a panel, 4096 / 128 x 128 f32.
  static constexpr int64_t kScalesBytes = 16 << 10;

  void run() {
    for (int64_t k0 = 0; k0 < plan_.depth; k0 += plan_.depth_block) {
      const Range k{k0, std::min(plan_.depth, k0 + plan_.depth_block)};
      p_.w.fill(k, n_, workspace_.panel, scales_, sums_stride_, workspace_.fill);
      const bool last = k.end == plan_.depth;
      if (last && packer_) packer_->pack({0, p_.epilogue->a.dim(1)}, n_);
      for (int64_t m0 = m_.begin; m0 < m_.end; m0 += kLeftGroup) {
        const Range group{m0, std::min(m_.end, m0 + kLeftGroup)};
        float* sums = workspace_.sums + (keeps_sums_ ? (m0 - m_.begin) * sums_stride_ : 0);
        multiply(k, group, sums);
        if (last) finish(group, sums);
      }
    }
  }

 private:
  // A group of depth of a strip, 8 KB, and of the rows, 6 KB, stay in the first cache level until all have met.
  void multiply(Range k, Range rows, float* sums) {
    const int64_t bytes = p_.w.strip_bytes(k.size());
    const auto* codes = p_.x.codes.data<const int8_t>();
    const auto* scales = p_.x.scales.data<const float>();
    const auto* code_sums = p_.x.sums.data<const int32_t>();
    const auto* strip = reinterpret_cast<const uint8_t*>(workspace_.panel);
    for (int64_t n0 = 0; n0 < n_.size(); n0 += p_.kernel.width, strip += bytes) {
      for (int64_t k0 = k.begin; k0 < k.end; k0 += kInt8Group) {
        const int64_t steps = divide_up(std::min(kInt8Group, k.end - k0), p_.kernel.step);
        for (int64_t m0 = rows.begin; m0 < rows.end; m0 += p_.kernel.rows) {
          const int64_t at = k0 / kInt8Group * plan_.rows + m0;
          p_.kernel.multiply(std::min(p_.kernel.rows, rows.end - m0),
                             {.x = codes + at * kInt8Group,
                              .w = strip + (k0 - k.begin) * p_.kernel.width,
                              .steps = steps,
                              .x_scales = scales + at,
                              .x_sums = code_sums + at,
                              .w_scales = scales_ + (k0 - k.begin) / kInt8Group * sums_stride_ + n0,
                              .sums = sums + (m0 - rows.begin) * sums_stride_ + n0,
                              .sums_stride = sums_stride_,
                              .first = k0 == 0});
        }
      }
    }
  }

  // By the kernel in floats, whose product is the epilogue or has no steps.
  void finish(Range rows, float* sums) {
    const GemmKernel& kernel = p_.floats;
    std::byte* c = p_.c.mutable_raw();
    const auto c_size = static_cast<int64_t>(dtype_size(p_.c.dtype()));
    const auto size = static_cast<int64_t>(dtype_size(kernel.compute));
    const int64_t depth = p_.epilogue ? p_.epilogue->a.dim(1) : 0;
    const int64_t strip = packer_ ? packer_->strip_bytes(depth) : 0, steps = divide_up(depth, kernel.depth_step);
    for (int64_t m0 = rows.begin; m0 < rows.end; m0 += kernel.rows) {
      const std::byte* right = workspace_.left;
      for (int64_t n0 = 0; n0 < n_.size(); n0 += kernel.width, right += strip) {
        const TileInput input = {.a = p_.epilogue ? p_.epilogue->a.raw() + m0 * depth * size : nullptr,
                                 .a_row_bytes = depth * size,
                                 .a_step_bytes = kernel.depth_step * size,
                                 .b = right,
                                 .steps = steps,
                                 .epilogue = nullptr};
        const TileOutput output = {.first = false,
                                   .last = true,
                                   .sums = sums + (m0 - rows.begin) * sums_stride_ + n0,
                                   .sums_stride = sums_stride_,
                                   .c = c + (m0 * plan_.columns + n_.begin + n0) * c_size,
                                   .c_stride = plan_.columns,
                                   .dtype = p_.c.dtype(),
                                   .alpha = 1,
                                   .accumulate = p_.accumulate};
        kernel.multiply(std::min(kernel.rows, rows.end - m0), std::min(kernel.width, n_.size() - n0), input, output);
      }
    }
  }

  const Int8Product& p_;
  const GemmPlan& plan_;
  Range m_, n_;
  GemmWorkspace workspace_;
  std::optional<PanelPacker> packer_;
  float* scales_;
  int64_t sums_stride_;
  bool keeps_sums_;
  KernelUse use_{p_.kernel.release};
};

}  // namespace

void int8_product(const Int8Rows& x, const WeightView& w, bool transposed, Tensor& c, bool accumulate,
                  const LowRankEpilogue* epilogue, Isa level) {
  if (c.numel() == 0) return;
  if (x.depth == 0 && !accumulate) c.zero();
  const Int8Kernel* kernel = int8_kernel(level);
  NIBBLE_CHECK(kernel != nullptr, "products in 8 bits");
  const GemmKernel& floats = gemm_kernel(level, x.dtype);
  std::optional<WeightView> right;
  std::optional<PackedProduct> low;
  bool fused = false;
  if (epilogue) {
    right.emplace(epilogue->right);
    low.emplace(PackedProduct{
        .a = epilogue->left, .w = *right, .w_transposed = epilogue->right_transposed, .c = c, .accumulate = true});
    fused = x.depth > 0 && gemm_packed_reads(*low, kernel->panel_columns, Job::kScalesBytes, level);
  }
  if (x.depth > 0) {
    const Int8Panels panels(w, transposed, *kernel, level);
    std::optional<WeightPanels> low_panels;
    if (fused) low_panels.emplace(*right, level);
    const Int8Product of{
        x, panels, *kernel, floats, c, accumulate, fused ? &*low : nullptr, fused ? &*low_panels : nullptr};
    const GemmPlan plan(kernel->shape(), c.dim(0), c.dim(1), x.depth);
    parallel_for(plan.jobs(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t job = begin; job < end; ++job) {
        const auto [m, n] = plan.piece(job);
        Job(of, plan, m, n).run();
      }
    });
  }
  if (epilogue && !fused) {
    (epilogue->right_transposed ? matmul_nt : matmul_nn)(epilogue->left, *right, c, true, 1.0f, nullptr);
  }
}

const Int8Kernel* int8_kernel([[maybe_unused]] Isa level) {
#if defined(__x86_64__)
  if (level == Isa::amx) return &kInt8Amx;
  if (level >= Isa::avx512_vnni && avx512_granted().vnni) return &kInt8Avx512Vnni;
  if (level == Isa::avx_vnni) return &kInt8AvxVnni;
  if (level >= Isa::avx2) return &kInt8Avx2;
#elif defined(__aarch64__)
  if (level >= Isa::neon_i8mm) return &kInt8NeonI8mm;
  if (level == Isa::neon_dotprod) return &kInt8NeonDotprod;
#endif
  return nullptr;
}

void int8_matmul_nt(const Int8Rows& x, const WeightView& w, Tensor& c, bool accumulate,
                    const LowRankEpilogue* epilogue) {
  int8_product(x, w, true, c, accumulate, epilogue, isa());
}

void int8_matmul_nn(const Int8Rows& x, const WeightView& w, Tensor& c, bool accumulate,
                    const LowRankEpilogue* epilogue) {
  int8_product(x, w, false, c, accumulate, epilogue, isa());
}

}  // namespace nibble::ops::cpu

namespace nibble::ops {

int64_t int8_levels() {
  const cpu::Int8Kernel* kernel = cpu::int8_kernel(isa());
  return kernel ? kernel->levels : 0;
}

}  // namespace nibble::ops
