#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "nibble/core/ops/backend.h"
#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/panel_packer.h"
#include "nibble/core/ops/experts/update_fusion.h"

namespace nibble::ops::cpu {

namespace {

// Columns of W that are expanded at once, see PanelPacker.
constexpr int64_t kMostColumns = 512;
// A tile of any kernel.
constexpr int64_t kTileSums = 3072;
// Of a weight that few rows meet: elements of a row, and depths, that are expanded at once.
constexpr int64_t kFewDepth = 2048, kThinDepth = 32, kStripDepth = 512;

/// One product of all groups. A panel of a group's weight is filled once and multiplied with all its rows, which are
/// read where they lie, or copied from where they lie a few tiles at a time, into the cache.
class Grouped {
 public:
  Grouped(const Tensor& x, RowOrder x_order, const RowGroups& groups, const GroupedWeights& weights, Tensor& y,
          RowOrder y_order, bool accumulate, float alpha, Isa level)
      : x_(x),
        gathers_(x_order == RowOrder::tokens),
        scatters_(y_order == RowOrder::tokens),
        rows_(groups.rows.data<const int32_t>()),
        groups_(groups),
        weights_(weights),
        y_(y),
        accumulate_(accumulate),
        alpha_(alpha),
        level_(level),
        kernel_(gemm_kernel(level, x.dtype())),
        size_(static_cast<int64_t>(dtype_size(kernel_.compute))),
        depth_(x.dim(1)),
        columns_(y.dim(1)),
        rank_(weights.left ? weights.left.dim(1) : 0),
        in_place_(!gathers_ && x.dtype() == kernel_.compute && depth_ % kernel_.depth_step == 0),
        keeps_sums_(depth_ > kernel_.depth_block) {
    const int64_t deep = round_up(std::min(depth_, kernel_.depth_block), kernel_.depth_step);
    const int64_t panel = kernel_.depth_block * kernel_.panel_columns;
    const int64_t most = std::max(kernel_.width, std::min(kMostColumns, panel / deep / kernel_.width * kernel_.width));
    // Where groups add to the same rows a thread has columns of its own, of all groups.
    int64_t chunks = divide_up(columns_, most);
    if (scatters_) chunks = round_up(chunks, threads());
    chunk_columns_ = round_up(divide_up(columns_, chunks), kernel_.width);
    chunks_ = divide_up(columns_, chunk_columns_);
    sums_stride_ = chunk_columns_;
    left_stride_ = round_up(deep * size_, 64) + 64;  // rows whose lines do not meet in one set of the cache
    right_bytes_ = round_up(rank_, kernel_.depth_step) * chunk_columns_ * size_;
    if (rank_ > 0 && weights.left.dtype() != kernel_.compute) low_bytes_ = round_up(kernel_.rows * rank_ * size_, 64);
    const int64_t left = gemm_workspace(kernel_).left_size - right_bytes_ - low_bytes_;
    left_rows_ = in_place_ ? kLeftGroup : std::min(kLeftGroup, left / left_stride_ / kernel_.rows * kernel_.rows);
    for (int64_t g = 0; g < groups.groups(); ++g) {
      if (groups.count(g) > 0) chosen_.push_back(g);
    }
  }

  /// Whether the update can be fused.
  bool fits() const {
    return rank_ % kernel_.depth_step == 0 && right_bytes_ + low_bytes_ <= gemm_workspace(kernel_).left_size &&
           left_rows_ >= kernel_.rows;
  }

  void run() const {
    const auto chosen = std::ssize(chosen_);
    parallel_for(scatters_ ? chunks_ : chosen * chunks_, 1, [&](int64_t piece, int64_t) {
      const Range n = chunk_of_columns(piece % chunks_, chunks_, columns_, kernel_.width);
      if (!scatters_) return multiply(chosen_[static_cast<size_t>(piece / chunks_)], n);
      for (const int64_t g : chosen_) multiply(g, n);
    });
  }

 private:
  /// Columns n of the rows of group g.
  void multiply(int64_t g, Range n) const {
    const GemmWorkspace workspace = gemm_workspace(kernel_);
    const KernelUse use(kernel_.release);
    const auto index = static_cast<size_t>(g);
    const WeightPanels panels(weights_.w[index], level_);
    const PackedProduct product{
        .a = x_, .w = weights_.w[index], .w_transposed = weights_.transposed, .c = y_, .accumulate = accumulate_};
    const PanelPacker packer(product, panels, kernel_, workspace.panel, workspace.fill);
    std::optional<WeightView> right;
    std::optional<WeightPanels> right_panels;
    std::optional<PanelPacker> right_packer;
    if (rank_ > 0) {
      right.emplace(weights_.right[index]);
      right_panels.emplace(*right, level_);
      const PackedProduct low{
          .a = weights_.left, .w = *right, .w_transposed = weights_.right_transposed, .c = y_, .accumulate = true};
      right_packer.emplace(low, *right_panels, kernel_, workspace.left, workspace.fill);
    }
    if (is_few(groups_.count(g))) {
      if (right_packer) right_packer->pack({0, rank_}, n);
      return multiply_few(g, n, panels, workspace);
    }
    const int64_t most = keeps_sums_ ? workspace.sums_size / sums_stride_ / kLeftGroup * kLeftGroup
                                     : std::numeric_limits<int64_t>::max();
    for (int64_t begin = groups_.begin(g); begin < groups_.end(g);) {
      const Range m{begin, begin + std::min(most, groups_.end(g) - begin)};
      for (int64_t k0 = 0; k0 < depth_; k0 += kernel_.depth_block) {
        const Range k{k0, std::min(depth_, k0 + kernel_.depth_block)};
        packer.pack(k, n);
        if (right_packer && k.end == depth_) right_packer->pack({0, rank_}, n);
        for (int64_t m0 = m.begin; m0 < m.end; m0 += left_rows_) {
          multiply(g, {m0, std::min(m.end, m0 + left_rows_)}, n, k, packer, workspace, m0 - m.begin);
        }
      }
      begin = m.end;
    }
  }

  /// Rows m, at most left_rows_, whose sums begin with row `first` of those that are kept.
  void multiply(int64_t g, Range m, Range n, Range k, const PanelPacker& packer, const GemmWorkspace& workspace,
                int64_t first) const {
    const std::byte* left = x_.raw() + (m.begin * depth_ + k.begin) * size_;
    int64_t left_bytes = depth_ * size_;
    if (!in_place_) {
      std::byte* const copies = workspace.left + right_bytes_ + low_bytes_;
      left = copies;
      left_bytes = left_stride_;
      for (int64_t row = m.begin; row < m.end; ++row) copy_row(row, k, copies + (row - m.begin) * left_stride_);
    }
    const int64_t strip = packer.strip_bytes(k.size());
    const bool last = k.end == depth_;
    for (int64_t m0 = m.begin; m0 < m.end; m0 += kernel_.rows, left += kernel_.rows * left_bytes) {
      const int64_t rows = std::min(kernel_.rows, m.end - m0);
      const std::byte* low = last && rank_ > 0 ? low_rows({m0, m0 + rows}, workspace) : nullptr;
      for (int64_t n0 = 0; n0 < n.size(); n0 += kernel_.width) {
        const int64_t columns = std::min(kernel_.width, n.size() - n0);
        TileInput epilogue{};
        if (low != nullptr) epilogue = update_tile(low, n0, workspace);
        const TileInput input{.a = left,
                              .a_row_bytes = left_bytes,
                              .a_step_bytes = kernel_.depth_step * size_,
                              .b = workspace.panel + n0 / kernel_.width * strip,
                              .steps = divide_up(k.size(), kernel_.depth_step),
                              .epilogue = low != nullptr ? &epilogue : nullptr};
        float* sums = workspace.sums + (keeps_sums_ ? (first + m0 - m.begin) * sums_stride_ + n0 : 0);
        multiply_tile(g, {m0, m0 + rows}, {n.begin + n0, n.begin + n0 + columns}, input, sums, k.begin == 0, last);
      }
    }
  }

  /// Whether so many rows meet the weight without its being packed.
  bool is_few(int64_t count) const {
    const bool narrow = kernel_.compute == DType::bf16;
    return count <= kFewGroupedRows && count * few_stride() <= kernel_.depth_block * kernel_.panel_columns * size_ &&
           (weights_.transposed ? kernel_.dots != nullptr : narrow && kernel_.multiply_thin != nullptr);
  }
  int64_t few_stride() const { return round_up(depth_ * size_, 64) + 64; }

  void multiply_few(int64_t g, Range n, const WeightPanels& panels, const GemmWorkspace& workspace) const {
    const Range m{groups_.begin(g), groups_.end(g)};
    for (int64_t row = m.begin; row < m.end; ++row) {
      std::byte* to = workspace.panel + (row - m.begin) * few_stride();
      std::memset(to + few_stride() - 128, 0, 128);
      copy_row(row, {0, depth_}, to);
    }
    if (weights_.transposed) {
      few_by_dots(m.size(), n, panels, workspace);
    } else {
      few_by_columns(m.size(), n, panels, workspace);
    }
    // What is left is the update, or nothing, and the way out.
    for (int64_t m0 = m.begin; m0 < m.end; m0 += kernel_.rows) {
      const int64_t rows = std::min(kernel_.rows, m.end - m0);
      const std::byte* low = rank_ > 0 ? low_rows({m0, m0 + rows}, workspace) : nullptr;
      for (int64_t n0 = 0; n0 < n.size(); n0 += kernel_.width) {
        const int64_t columns = std::min(kernel_.width, n.size() - n0);
        TileInput input{.a = workspace.panel, .a_row_bytes = 0, .a_step_bytes = 0, .b = workspace.left, .steps = 0};
        if (low != nullptr) input = update_tile(low, n0, workspace);
        float* sums = workspace.sums + (m0 - m.begin) * sums_stride_ + n0;
        multiply_tile(g, {m0, m0 + rows}, {n.begin + n0, n.begin + n0 + columns}, input, sums, false, true);
      }
    }
  }

  /// Rows m and columns n of group g; first, last: whether this is that part of the depth, sums: of the others.
  void multiply_tile(int64_t g, Range m, Range n, const TileInput& input, float* sums, bool first, bool last) const {
    alignas(64) float tile[kTileSums];
    TileOutput output{.first = first,
                      .last = last,
                      .sums = sums,
                      .sums_stride = sums_stride_,
                      .c = reinterpret_cast<std::byte*>(tile),
                      .c_stride = kernel_.width,
                      .dtype = DType::f32,
                      .alpha = alpha_,
                      .accumulate = false};
    if (!scatters_) place(output, m.begin, n.begin);
    kernel_.multiply(m.size(), n.size(), input, output);
    if (scatters_ && last) scatter(g, tile, m, n);
  }

  /// Rows of w [out, in] times the rows in workspace.panel.
  void few_by_dots(int64_t count, Range n, const WeightPanels& panels, const GemmWorkspace& workspace) const {
    const auto fused = [&]<typename X>(const X* x) { return panels.dots(n.begin, n.end, x, workspace.sums); };
    if (count == 1 && (kernel_.compute == DType::bf16 ? fused(reinterpret_cast<const bf16*>(workspace.panel))
                                                      : fused(reinterpret_cast<const float*>(workspace.panel)))) {
      return;
    }
    const RowsForDots in_place = rows_for_dots(panels, x_.dtype(), kernel_);
    for (int64_t column = n.begin; column < n.end; column += kDotRows) {
      const int64_t columns = std::min(kDotRows, n.end - column);
      float sums[kFewGroupedRows][kDotRows] = {};
      for (int64_t k = 0; k < depth_; k += kFewDepth) {
        const int64_t deep = std::min(kFewDepth, depth_ - k);
        const std::byte* w = workspace.fill;
        if (in_place.first != nullptr) {
          w = in_place.first + (column * depth_ + k) * in_place.size;
        } else {
          fill(panels, {column, column + columns}, {k, k + deep}, workspace.fill);
        }
        for (int64_t m = 0; m < count; m += kDotRows) {
          float part[kDotRows * kDotRows];
          const int64_t rows = std::min(kDotRows, count - m);
          in_place.dots(rows, columns, deep, workspace.panel + m * few_stride() + k * size_, few_stride() / size_, w,
                        in_place.first != nullptr ? depth_ : deep, part);
          for (int64_t i = 0; i < rows * kDotRows; ++i) sums[m + i / kDotRows][i % kDotRows] += part[i];
        }
      }
      for (int64_t m = 0; m < count; ++m) {
        std::copy(sums[m], sums[m] + columns, workspace.sums + m * sums_stride_ + column - n.begin);
      }
    }
  }

  /// The rows in workspace.panel times rows of w [in, out], a few depths after another.
  void few_by_columns(int64_t count, Range n, const WeightPanels& panels, const GemmWorkspace& workspace) const {
    constexpr int64_t kGroup = kThinRows * kThinColumns, kGroups = kFewGroupedRows / kThinRows;
    const int64_t strip_step = kernel_.width * size_, stride = round_up(n.size(), kThinColumns);
    float* parts = workspace.sums + kFewGroupedRows * sums_stride_;  // [columns / 32][group of rows][8][32]
    std::fill(parts, parts + stride / kThinColumns * kGroups * kGroup, 0.0f);
    std::byte* strip = workspace.left + right_bytes_;
    for (int64_t k0 = 0; k0 < depth_; k0 += kStripDepth) {
      const int64_t k1 = std::min(depth_, k0 + kStripDepth);
      kernel_.pack_transposed(workspace.panel + k0 * size_, few_stride() / size_, count, k1 - k0, strip);
      for (int64_t k = k0; k < k1; k += kThinDepth) {
        const int64_t deep = std::min(kThinDepth, k1 - k);
        panels.fill(k, k + deep, n.begin, n.end, reinterpret_cast<bf16*>(workspace.fill), stride);
        for (int64_t i = 0; i < n.size(); i += kThinColumns) {
          for (int64_t m = 0; m < count; m += kThinRows) {
            kernel_.multiply_thin(std::min(kThinRows, count - m), std::min(kThinColumns, n.size() - i), deep,
                                  strip + (k - k0) * strip_step + m * kernel_.depth_step * size_,
                                  workspace.fill + i * size_, stride,
                                  parts + (i / kThinColumns * kGroups + m / kThinRows) * kGroup);
          }
        }
      }
    }
    for (int64_t m = 0; m < count; ++m) {
      for (int64_t i = 0; i < n.size(); ++i) {
        workspace.sums[m * sums_stride_ + i] = parts[(i / kThinColumns * kGroups + m / kThinRows) * kGroup +
                                                     m % kThinRows * kThinColumns + i % kThinColumns];
      }
    }
  }

  /// A piece of a weight as a product in the dtype of x reads it.
  void fill(const WeightPanels& panels, Range rows, Range cols, std::byte* to) const {
    if (kernel_.compute == DType::bf16) {
      return panels.fill(rows.begin, rows.end, cols.begin, cols.end, reinterpret_cast<bf16*>(to), cols.size());
    }
    auto* floats = reinterpret_cast<float*>(to);
    panels.fill(rows.begin, rows.end, cols.begin, cols.end, floats, cols.size());
    if (x_.dtype() == DType::f32) return;
    for (int64_t i = 0; i < rows.size() * cols.size(); ++i) floats[i] = static_cast<float>(bf16(floats[i]));
  }

  void place(TileOutput& output, int64_t row, int64_t column) const {
    output.c = y_.mutable_raw() + (row * columns_ + column) * static_cast<int64_t>(dtype_size(y_.dtype()));
    output.c_stride = columns_;
    output.dtype = y_.dtype();
    output.accumulate = accumulate_;
  }

  /// Rows m of a tile of the update's left side in the compute type: in place, or widened.
  const std::byte* low_rows(Range m, const GemmWorkspace& workspace) const {
    if (low_bytes_ == 0) return weights_.left.raw() + m.begin * rank_ * size_;
    std::byte* const to = workspace.left + right_bytes_;
    widen(weights_.left.data<const bf16>() + m.begin * rank_, m.size() * rank_, reinterpret_cast<float*>(to), level_);
    return to;
  }

  TileInput update_tile(const std::byte* low, int64_t column, const GemmWorkspace& workspace) const {
    const int64_t strip = round_up(rank_, kernel_.depth_step) * kernel_.width * size_;
    return {.a = low,
            .a_row_bytes = rank_ * size_,
            .a_step_bytes = kernel_.depth_step * size_,
            .b = workspace.left + column / kernel_.width * strip,
            .steps = divide_up(rank_, kernel_.depth_step),
            .epilogue = nullptr};
  }

  /// Row `row` of the groups, depths k, in the compute type.
  void copy_row(int64_t row, Range k, std::byte* to) const {
    const int64_t from = (gathers_ ? rows_[row] : row) * depth_ + k.begin;
    if (x_.dtype() == kernel_.compute) {
      std::memcpy(to, x_.raw() + from * size_, static_cast<size_t>(k.size() * size_));
    } else {
      widen(x_.data<const bf16>() + from, k.size(), reinterpret_cast<float*>(to), level_);
    }
    const int64_t padded = round_up(k.size(), kernel_.depth_step);
    std::memset(to + k.size() * size_, 0, static_cast<size_t>((padded - k.size()) * size_));
  }

  /// Adds rows m and columns n of a finished tile, and their biases, to the tokens' rows.
  void scatter(int64_t g, float* tile, Range m, Range n) const {
    for (int64_t row = m.begin; row < m.end; ++row, tile += kernel_.width) {
      if (!weights_.biases.empty()) {
        const float weight = weights_.bias_weights.data<const float>()[row];
        const float* bias = weights_.biases[static_cast<size_t>(g)].data<const float>() + n.begin;
        for (int64_t i = 0; i < n.size(); ++i) tile[i] += weight * bias[i];
      }
      kernel_.store(tile, 1, n.size(),
                    {.first = true,
                     .last = true,
                     .sums = nullptr,
                     .sums_stride = kernel_.width,
                     .c = y_.mutable_raw() + (rows_[row] * columns_ + n.begin) * static_cast<int64_t>(sizeof(float)),
                     .c_stride = columns_,
                     .dtype = DType::f32,
                     .alpha = 1,
                     .accumulate = true});
    }
  }

  const Tensor& x_;
  bool gathers_, scatters_;
  const int32_t* rows_;
  const RowGroups& groups_;
  const GroupedWeights& weights_;
  Tensor& y_;
  bool accumulate_;
  float alpha_;
  Isa level_;
  const GemmKernel& kernel_;
  int64_t size_;  // of an element in the compute type
  int64_t depth_, columns_, rank_;
  bool in_place_;    // rows of x are read where they lie
  bool keeps_sums_;  // between panels of one depth after another
  int64_t chunk_columns_, chunks_, sums_stride_, left_stride_, left_rows_, right_bytes_;
  int64_t low_bytes_ = 0;        // of a tile's rows of the update's left side, where they are widened
  std::vector<int64_t> chosen_;  // groups with rows
};

}  // namespace

void grouped_matmul(const Tensor& x, RowOrder x_order, const RowGroups& groups, const GroupedWeights& weights,
                    Tensor& y, RowOrder y_order, bool accumulate, float alpha) {
  if (groups.size() == 0 || y.numel() == 0) return;
  const Grouped product(x, x_order, groups, weights, y, y_order, accumulate, alpha, isa());
  if (product.fits()) return product.run();
  GroupedWeights base = weights;  // the update as a product of its own
  base.left = {};
  const Tensor left = weights.left;
  cpu::grouped_matmul(x, x_order, groups, base, y, y_order, accumulate, alpha);
  GroupedWeights update;
  update.transposed = weights.right_transposed;
  for (const Tensor& right : weights.right) update.w.emplace_back(right ? right : left);
  cpu::grouped_matmul(left, RowOrder::groups, groups, update, y, y_order, true, 1);
}

void grouped_matmul_tn(const Tensor& a, RowOrder a_order, const Tensor& b, RowOrder b_order, const RowGroups& groups,
                       const std::vector<Tensor>& c) {
  MemoryPool scratch;
  const int32_t* rows = groups.rows.data<const int32_t>();
  const auto of_group = [&](const Tensor& x, RowOrder order, int64_t g) {
    if (order == RowOrder::groups) return x.rows(groups.begin(g), groups.end(g));
    Tensor own = Tensor::empty(scratch, {groups.count(g), x.dim(1)}, x.dtype());
    const size_t bytes = static_cast<size_t>(x.dim(1)) * dtype_size(x.dtype());
    for (int64_t n = 0; n < groups.count(g); ++n) {
      std::memcpy(own.mutable_raw() + static_cast<size_t>(n) * bytes,
                  x.raw() + static_cast<size_t>(rows[groups.begin(g) + n]) * bytes, bytes);
    }
    return own;
  };
  parallel_for(groups.groups(), 1, [&](int64_t g, int64_t) {
    if (groups.count(g) == 0) return;
    Tensor sum = c[static_cast<size_t>(g)];
    cpu::matmul_tn(of_group(a, a_order, g), of_group(b, b_order, g), sum, true, 1);
  });
}

}  // namespace nibble::ops::cpu

namespace nibble::ops {

bool fuses_update(DType dtype, RowOrder x_order, int64_t depth, int64_t columns, int64_t rank) {
  MemoryPool scratch;
  const RowGroups none{{0}, Tensor::zeros(scratch, {1}, DType::i32)};
  const Tensor x = Tensor::zeros(scratch, {1, depth}, dtype);
  Tensor y = Tensor::zeros(scratch, {1, columns}, DType::f32);
  GroupedWeights weights;
  weights.left = Tensor::zeros(scratch, {1, rank}, dtype);
  return cpu::Grouped(x, x_order, none, weights, y, RowOrder::tokens, false, 1, isa()).fits();
}

}  // namespace nibble::ops
