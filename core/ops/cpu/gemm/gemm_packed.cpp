#include "nibble/core/ops/cpu/gemm/gemm_packed.h"

#include <algorithm>
#include <array>

#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/panel_packer.h"

namespace nibble::ops::cpu {

namespace {

bool reads_left_in_place(const PackedProduct& p, const GemmKernel& kernel) {
  return !p.a_transposed && p.a.dtype() == kernel.compute && p.a.dim(1) % kernel.depth_step == 0;
}

/// Whether rows of A become f32 in a buffer, a group at a time.
bool widens_left(const PackedProduct& p) { return p.widened && !p.a_transposed && p.a.dtype() == DType::bf16; }

// Rows of A that are widened at once, a multiple of every kernel's: they stay in the nearest cache.
constexpr int64_t kWidenedRows = 12;

/// A product and what is prepared once of its weight.
struct Operands {
  Operands(const PackedProduct& product, Isa level) : p(product), w(product.w, level) {}
  const PackedProduct& p;
  WeightPanels w;
};

/// How the kernel finds elements of A.
struct LeftTile {
  const std::byte* data;
  int64_t row_bytes, step_bytes;
};

/// The tiles of rows that are multiplied at once.
class Tiles {
 public:
  struct Tile {
    int64_t row, rows;
    const std::byte* left;
  };

  /// of: rows of a full tile
  Tiles(const GemmKernel& kernel, int64_t of, int64_t count, const LeftTile& left) {
    // Two tiles share what a full one would leave too few rows of.
    for (int64_t row = 0, rows; row < count; row += rows) {
      const int64_t behind = count - row - of;
      rows = std::min(of, count - row);
      if (behind > 0 && behind < kernel.least_rows) rows = (count - row + 1) / 2;
      tiles_[static_cast<size_t>(count_++)] = {row, rows, left.data + row * left.row_bytes};
    }
  }

  const Tile* begin() const { return tiles_.data(); }
  const Tile* end() const { return tiles_.data() + count_; }

 private:
  std::array<Tile, kLeftGroup> tiles_;
  int64_t count_ = 0;
};

/// One job: rows m and columns n of C. next: columns of a later one, see GemmPlan::columns_after.
class Job {
 public:
  Job(const Operands& product, const Operands* epilogue, const GemmKernel& kernel, const GemmPlan& plan, Range m,
      Range n, Range next)
      : p_(product.p),
        epilogue_(epilogue ? &epilogue->p : nullptr),
        plan_(plan),
        kernel_(kernel),
        level_(product.w.level()),
        m_(m),
        n_(n),
        next_(next),
        workspace_(gemm_workspace(kernel_)),
        packer_(product.p, product.w, kernel, workspace_.panel, workspace_.fill),
        group_rows_(widens_left(p_) ? kWidenedRows : kLeftGroup),
        left_bytes_(widens_left(p_) ? kWidenedRows * plan.depth_block * static_cast<int64_t>(sizeof(float)) : 0),
        epilogue_packer_((epilogue ? *epilogue : product).p, (epilogue ? *epilogue : product).w, kernel,
                         workspace_.left + left_bytes_, workspace_.fill) {
    sums_stride_ = round_up(n.size(), kernel_.width);
    if (epilogue_ != nullptr) epilogue_strip_ = epilogue_packer_.strip_bytes(epilogue_->a.dim(1));
    // With one panel in depth no sums are kept between panels.
    keeps_sums_ = plan.depth > plan_.depth_block;
    NIBBLE_CHECK((keeps_sums_ ? m.size() : group_rows_) * sums_stride_ <= workspace_.sums_size, "sums of a job");
  }

  void run() {
    for (int64_t k0 = 0; k0 < plan_.depth; k0 += plan_.depth_block) {
      const Range k{k0, std::min(plan_.depth, k0 + plan_.depth_block)};
      packer_.pack(k, n_);
      fetch_panel_after(k);
      if (epilogue_ != nullptr && k.end == plan_.depth) epilogue_packer_.pack({0, epilogue_->a.dim(1)}, n_);
      for (int64_t m0 = m_.begin; m0 < m_.end; m0 += group_rows_) {
        const Range group{m0, std::min(m_.end, m0 + group_rows_)};
        float* sums = workspace_.sums + (keeps_sums_ ? (m0 - m_.begin) * sums_stride_ : 0);
        multiply_group(k, group, sums);
      }
    }
  }

 private:
  void fetch_panel_after(Range k) {
    const int64_t begin = k.end < plan_.depth ? k.end : 0;
    const int64_t tiles = divide_up(m_.size(), kernel_.rows) * divide_up(n_.size(), kernel_.width);
    ahead_ = packer_.ahead({begin, std::min(plan_.depth, begin + plan_.depth_block)}, begin > 0 ? n_ : next_, tiles);
  }

  void multiply_group(Range k, Range group, float* sums) {
    const int64_t steps = divide_up(k.size(), kernel_.depth_step);
    const int64_t size = static_cast<int64_t>(dtype_size(kernel_.compute));
    LeftTile left;
    if (left_bytes_ > 0) {
      widen_rows(p_.a, group, k, workspace_.left);
      left = {workspace_.left, k.size() * size, size};
      if (k.end == plan_.depth && epilogue_ != nullptr) {
        widen_rows(epilogue_->a, group, {0, epilogue_->a.dim(1)}, epilogue_left());
      }
    } else {
      left = {p_.a.raw() + (group.begin * plan_.depth + k.begin) * size, plan_.depth * size, kernel_.depth_step * size};
    }
    std::byte* c = p_.c.mutable_raw();
    const auto c_size = static_cast<int64_t>(dtype_size(p_.c.dtype()));
    const bool last = k.end == plan_.depth;
    TileOutput output = {.first = k.begin == 0,
                         .last = last,
                         .sums_stride = sums_stride_,
                         .c_stride = plan_.columns,
                         .dtype = p_.c.dtype(),
                         .alpha = p_.alpha,
                         .accumulate = p_.accumulate};
    const bool narrow = kernel_.narrow_rows > 0 && n_.size() <= kernel_.lanes;
    const Tiles tiles(kernel_, narrow ? kernel_.narrow_rows : kernel_.rows, group.size(), left);
    const int64_t strip = packer_.strip_bytes(k.size());
    TileInput low = {};
    if (epilogue_ != nullptr) low = epilogue_input(group.begin);
    const std::byte *const low_left = low.a, *const low_right = low.b;
    TileInput input = {.a_row_bytes = left.row_bytes,
                       .a_step_bytes = left.step_bytes,
                       .steps = steps,
                       .epilogue = last && epilogue_ != nullptr ? &low : nullptr};
    const int64_t asked = k.size() * size / divide_up(n_.size(), kernel_.width);  // of a row that follows, per strip
    for (const Tiles::Tile& tile : tiles) {
      const bool more = left_bytes_ == 0 && group.begin + tile.row + 2 * tile.rows <= m_.end;
      output.sums = sums + tile.row * sums_stride_;
      output.c = c + ((group.begin + tile.row) * plan_.columns + n_.begin) * c_size;
      input.a = tile.left;
      input.b = workspace_.panel;
      low.a = low_left + tile.row * low.a_row_bytes;
      low.b = low_right;
      input.next_rows = more ? tile.left + tile.rows * left.row_bytes : nullptr;
      for (int64_t n = 0; n < n_.size(); n += kernel_.width) {
        ahead_.next();
        kernel_.multiply(tile.rows, std::min(kernel_.width, n_.size() - n), input, output);
        output.sums += kernel_.width;
        output.c += kernel_.width * c_size;
        input.b += strip;
        if (more) input.next_rows += asked;
        low.b += epilogue_strip_;
      }
    }
  }

  /// Of the tile in row `row` and the first columns.
  TileInput epilogue_input(int64_t row) const {
    const int64_t size = static_cast<int64_t>(dtype_size(kernel_.compute)), depth = epilogue_->a.dim(1);
    return {.a = left_bytes_ > 0 ? epilogue_left() : epilogue_->a.raw() + row * depth * size,
            .a_row_bytes = depth * size,
            .a_step_bytes = kernel_.depth_step * size,
            .b = workspace_.left + left_bytes_,
            .steps = divide_up(depth, kernel_.depth_step)};
  }

  // Behind the right side.
  std::byte* epilogue_left() const {
    return workspace_.left + left_bytes_ + sums_stride_ / kernel_.width * epilogue_strip_;
  }

  void widen_rows(const Tensor& a, Range rows, Range k, std::byte* out) const {
    for (int64_t m = rows.begin; m < rows.end; ++m, out += k.size() * static_cast<int64_t>(sizeof(float))) {
      widen(a.data<const bf16>() + m * a.dim(1) + k.begin, k.size(), reinterpret_cast<float*>(out), level_);
    }
  }

  const PackedProduct& p_;
  const PackedProduct* epilogue_;
  const GemmPlan& plan_;
  const GemmKernel& kernel_;
  Isa level_;
  Range m_, n_, next_;
  GemmWorkspace workspace_;
  PanelPacker packer_;
  int64_t group_rows_, left_bytes_;  // rows multiplied at once; of widened ones
  PanelPacker epilogue_packer_;
  int64_t sums_stride_, epilogue_strip_ = 0;
  bool keeps_sums_;
  FetchAhead ahead_;
  KernelUse use_{kernel_.release};
};

}  // namespace

const GemmKernel& gemm_kernel(Isa level, DType input) {
#if defined(__x86_64__)
  if (level == Isa::amx && input == DType::bf16) return kGemmAmx;
  if (level == Isa::avx512_bf16 && input == DType::bf16) return kGemmAvx512Bf16;
  if (level >= Isa::avx512) return kGemmAvx512;
  if (level >= Isa::avx2) return kGemmAvx2;
#elif defined(__aarch64__)
  if (level == Isa::neon_bf16 && input == DType::bf16) return kGemmNeonBf16;
  if (level >= Isa::neon) return kGemmNeon;
#endif
  return kGemmBaseline;
}

bool gemm_packed_reads(const PackedProduct& epilogue, int64_t panel_columns, int64_t reserved, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, epilogue.a.dtype());
  const int64_t right = round_up(panel_columns, kernel.width) * round_up(epilogue.a.dim(1), kernel.depth_step) *
                        static_cast<int64_t>(dtype_size(kernel.compute));
  return epilogue.a.dim(1) > 0 && epilogue.alpha == 1 && reads_left_in_place(epilogue, kernel) &&
         right <= gemm_workspace(kernel).left_size - reserved;
}

bool gemm_packed_fuses(const PackedProduct& product, const PackedProduct& epilogue, Isa level) {
  const GemmKernel& kernel = kernel_of(product, level);
  if (widens_left(product)) {  // both left sides and the right one of the epilogue in the same buffer
    const int64_t floats = kWidenedRows * kernel.depth_block +
                           (kWidenedRows + round_up(kernel.panel_columns, kernel.width)) * epilogue.a.dim(1);
    return widens_left(epilogue) && product.alpha == 1 && epilogue.alpha == 1 && epilogue.a.dim(1) > 0 &&
           floats * static_cast<int64_t>(sizeof(float)) <= gemm_workspace(kernel).left_size;
  }
  return reads_left_in_place(product, kernel) && epilogue.a.dtype() == product.a.dtype() && product.alpha == 1 &&
         gemm_packed_reads(epilogue, kernel.panel_columns, 0, level);
}

void gemm_packed(const PackedProduct& product, Isa level, const PackedProduct* epilogue) {
  const GemmKernel& kernel = kernel_of(product, level);
  const int64_t depth = product.a.dim(product.a_transposed ? 0 : 1);
  if (!reads_left_in_place(product, kernel) && !widens_left(product)) {
    NIBBLE_CHECK(epilogue == nullptr, "the left side is in place");
    return gemm_both_packed(product, level);
  }
  const GemmPlan plan(kernel.shape(), product.c.dim(0), product.c.dim(1), depth);
  const Operands operands(product, level);
  std::optional<Operands> narrow;
  if (epilogue != nullptr) narrow.emplace(*epilogue, level);
  parallel_for(plan.jobs(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const auto [m, n] = plan.piece(job);
      Job(operands, narrow ? &*narrow : nullptr, kernel, plan, m, n, plan.columns_after(job)).run();
    }
  });
}

}  // namespace nibble::ops::cpu
