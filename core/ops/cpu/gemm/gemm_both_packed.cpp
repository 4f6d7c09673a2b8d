#include <algorithm>
#include <limits>
#include <type_traits>

#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/gemm_plan.h"
#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/panel_packer.h"

namespace nibble::ops::cpu {

namespace {

// What packing A costs, as columns that are multiplied with it: measured, as kPackedRows for B.
constexpr int64_t kPackedColumns = 24;
// A thread that something else holds up lets the others wait for this part of its last job.
constexpr int64_t kHeldUp = 32;
// Turns of the threads that are tried.
constexpr int64_t kMostTurns = 8;
// With few rows a panel costs more to write than to multiply: a quarter of it stays in the nearest cache.
constexpr int64_t kFewRows = 2 * kPackedRows;

/// How the kernel finds elements of packed rows of A.
struct PackedTiles {
  std::byte* data;
  int64_t row_bytes, step_bytes, tile_bytes;
};

template <typename From, typename To>
void pack_plainly(const PackedProduct& product, Range m, Range k, const GemmKernel& kernel, const PackedTiles& tiles) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(To));
  const int64_t tile_rows = kernel.rows, step = kernel.depth_step;
  const int64_t row_size = tiles.row_bytes / kSize, step_size = tiles.step_bytes / kSize;
  const From* a = product.a.data<const From>();
  const int64_t width = product.a.dim(1);
  const int64_t row_stride = product.a_transposed ? 1 : width, depth_stride = product.a_transposed ? width : 1;
  const int64_t steps = divide_up(k.size(), step);
  std::byte* tile = tiles.data;
  for (int64_t m0 = m.begin; m0 < m.end; m0 += tile_rows, tile += tiles.tile_bytes) {
    auto* out = reinterpret_cast<To*>(tile);
    const int64_t rows = std::min(tile_rows, m.end - m0);
    const From* from = a + m0 * row_stride + k.begin * depth_stride;
    for (int64_t s = 0; s < steps; ++s) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < step; ++i) {
          const int64_t depth = s * step + i;
          To value = To(0.0f);
          if (depth < k.size()) {
            if constexpr (std::is_same_v<From, To>) {
              value = from[r * row_stride + depth * depth_stride];
            } else {
              value = To(static_cast<float>(from[r * row_stride + depth * depth_stride]));
            }
          }
          out[s * step_size + r * row_size + i] = value;
        }
      }
    }
  }
}

/// The rows and columns of C of one job.
struct Chunk {
  int64_t rows, columns;
};

// The next smaller chunk of `count`, a multiple of `step`, of which there are more; 0: none.
int64_t smaller(int64_t count, int64_t chunk, int64_t step) {
  const int64_t chunks = divide_up(count, chunk);
  while (chunk > 0 && divide_up(count, chunk) == chunks) chunk -= step;
  return chunk > 0 ? round_up(divide_up(count, divide_up(count, chunk)), step) : 0;
}

// Chunks of one size, of at most `most` rows and columns, that end soonest. Many large ones are left as they are.
Chunk even_chunks(const GemmKernel& kernel, const Chunk& most, int64_t rows, int64_t columns, int64_t depth) {
  const auto even = [](int64_t count, int64_t chunk, int64_t step) {
    return round_up(divide_up(count, divide_up(count, chunk)), step);
  };
  Chunk best{};
  int64_t soonest = std::numeric_limits<int64_t>::max();
  for (int64_t n = even(columns, most.columns, kernel.width); n > 0; n = smaller(columns, n, kernel.width)) {
    for (int64_t m = even(rows, most.rows, kernel.rows); m > 0; m = smaller(rows, m, kernel.rows)) {
      const int64_t turns = divide_up(divide_up(columns, n) * divide_up(rows, m), threads());
      const int64_t work = (m + kPackedRows) * (n + kPackedColumns) * depth;
      if (best.rows > 0 && (turns > kMostTurns || work < kMinJobMultiplications)) break;
      int64_t time = turns * (work + kJobMultiplications);
      time += time / (kHeldUp * turns);
      if (time >= soonest) continue;
      soonest = time;
      best = {m, n};
    }
  }
  return best;
}

/// Jobs are chunks of rows and columns of C. Of a part of the depth a job packs its rows of A once, then its columns
/// of B, a panel at a time.
class BothPacked {
 public:
  BothPacked(const PackedProduct& p, Isa level)
      : p_(p),
        kernel_(kernel_of(p, level)),
        w_(p.w, level),
        depth_(p.a.dim(p.a_transposed ? 0 : 1)),
        block_(packed_left_depth(kernel_)),
        size_(static_cast<int64_t>(dtype_size(kernel_.compute))),
        keeps_sums_(p.c.dtype() != DType::f32 && depth_ > block_) {}

  void run() const {
    const int64_t rows = p_.c.dim(0), columns = p_.c.dim(1);
    const Chunk chunk = even_chunks(kernel_, most(), rows, columns, depth_);
    const int64_t cuts = divide_up(rows, chunk.rows);
    parallel_for(cuts * divide_up(columns, chunk.columns), 1, [&](int64_t begin, int64_t end) {
      for (int64_t job = begin; job < end; ++job) {
        const int64_t m = job % cuts * chunk.rows, n = job / cuts * chunk.columns;
        run_job({m, std::min(rows, m + chunk.rows)}, {n, std::min(columns, n + chunk.columns)});
      }
    });
  }

 private:
  // What the buffers of a thread hold.
  Chunk most() const {
    const GemmWorkspace workspace = gemm_workspace(kernel_);
    // Tiles, or rows, are whole lines and one that packing may overwrite.
    const int64_t row_bytes = round_up(round_up(std::min(depth_, block_), kernel_.depth_step) * size_, 64) + 64;
    const int64_t bytes = keeps_sums_ ? workspace.left_size : workspace.long_left_size;
    const int64_t rows = bytes / row_bytes / kLeftGroup * kLeftGroup;
    NIBBLE_CHECK(rows > 0, "packed rows of the kernel");
    const int64_t columns = keeps_sums_ ? workspace.sums_size / rows / kernel_.width * kernel_.width : p_.c.dim(1);
    return {rows, columns};
  }

  void run_job(Range m, Range n) const {
    const KernelUse use(kernel_.release);
    const GemmWorkspace workspace = gemm_workspace(kernel_);
    const PanelPacker packer(p_, w_, kernel_, workspace.panel, workspace.fill);
    TileOutput result = result_from(p_, m.begin, n.begin, kernel_.width), output = result;
    output.sums = reinterpret_cast<float*>(workspace.fill);  // of a tile, where a kernel keeps them in memory
    if (keeps_sums_) {
      result.sums_stride = output.c_stride = round_up(n.size(), kernel_.width);
      output.c = reinterpret_cast<std::byte*>(workspace.sums);
      output.dtype = DType::f32;
      output.alpha = 1;
      output.accumulate = false;
    }
    const int64_t most = 2 * kernel_.panel_columns / (m.size() < kFewRows ? 4 : 1);
    const int64_t panel = round_up(divide_up(n.size(), divide_up(n.size(), most)), kernel_.width);
    // A single panel meets its rows of A once: few at a time, which stay in the nearest cache.
    const int64_t at_once = n.size() <= panel ? kernel_.packed_rows : m.size();
    for (int64_t k0 = 0; k0 < depth_; k0 += block_, output.accumulate = true) {
      const Range k{k0, std::min(depth_, k0 + block_)};
      for (int64_t m0 = m.begin; m0 < m.end; m0 += at_once) {
        const Range rows{m0, std::min(m.end, m0 + at_once)};
        const PackedTiles left = pack_rows(rows, k, workspace);
        for (int64_t n0 = n.begin; n0 < n.end; n0 += panel) {
          const Range columns{n0, std::min(n.end, n0 + panel)};
          if (m0 == m.begin) packer.pack(k, columns);
          TileOutput of_panel = output;
          of_panel.c +=
              ((m0 - m.begin) * output.c_stride + n0 - n.begin) * static_cast<int64_t>(dtype_size(output.dtype));
          multiply_panel(k.size(), rows.size(), columns.size(), left, workspace.panel, of_panel);
        }
      }
    }
    if (keeps_sums_) kernel_.store(workspace.sums, m.size(), n.size(), result);
  }

  void multiply_panel(int64_t depth, int64_t rows, int64_t columns, const PackedTiles& left, const std::byte* panel,
                      const TileOutput& result) const {
    const int64_t c_size = static_cast<int64_t>(dtype_size(result.dtype)), steps = divide_up(depth, kernel_.depth_step);
    const int64_t strip = steps * kernel_.depth_step * kernel_.width * size_;
    TileInput input = {.a = left.data,
                       .a_row_bytes = left.row_bytes,
                       .a_step_bytes = left.step_bytes,
                       .steps = steps,
                       .epilogue = nullptr};
    TileOutput output = result;
    for (int64_t row = 0; row < rows; row += kernel_.rows, input.a += left.tile_bytes) {
      input.b = panel;
      output.c = result.c + row * result.c_stride * c_size;
      for (int64_t column = 0; column < columns; column += kernel_.width, input.b += strip) {
        kernel_.multiply(std::min(kernel_.rows, rows - row), std::min(kernel_.width, columns - column), input, output);
        output.c += kernel_.width * c_size;
      }
    }
  }

  PackedTiles pack_rows(Range m, Range k, const GemmWorkspace& workspace) const {
    const int64_t one = kernel_.depth_step * size_, row = divide_up(k.size(), kernel_.depth_step) * one;
    std::byte* const data = keeps_sums_ ? workspace.left : workspace.long_left;
    PackedTiles tiles = {data, one, kernel_.rows * one, round_up(kernel_.rows * row, 64) + 64};
    if (kernel_.left_by_rows) {
      const int64_t row_bytes = round_up(row, 64) + 64;
      tiles = {data, row_bytes, one, kernel_.rows * row_bytes};
    }
    const PackedTiles first = tiles;
    for (int64_t m0 = m.begin; m0 < m.end; m0 += kernel_.packed_rows) {
      pack_group({m0, std::min(m.end, m0 + kernel_.packed_rows)}, k, tiles, workspace.fill);
      tiles.data += kernel_.packed_rows / kernel_.rows * tiles.tile_bytes;
    }
    return first;
  }

  void pack_group(Range m, Range k, const PackedTiles& tiles, std::byte* fill) const {
    const DType input = p_.a.dtype();
    if (!p_.a_transposed || (!p_.widened && input != kernel_.compute) || kernel_.pack_left_transposed == nullptr) {
      const auto plainly = kernel_.compute == DType::bf16 ? pack_plainly<bf16, bf16>
                           : input == DType::bf16         ? pack_plainly<bf16, float>
                                                          : pack_plainly<float, float>;
      return plainly(p_, m, k, kernel_, tiles);
    }
    const int64_t width = p_.a.dim(1), first = k.begin * width + m.begin;
    const std::byte* from = p_.a.raw() + first * static_cast<int64_t>(dtype_size(input));
    if (input == kernel_.compute) {
      return kernel_.pack_left_transposed(from, width, m.size(), k.size(), tiles.data, tiles.tile_bytes);
    }
    // In the buffer of fills, as many rows as it holds.
    auto* wide = reinterpret_cast<float*>(fill);
    const int64_t most = kGemmFillBytes / (m.size() * static_cast<int64_t>(sizeof(float)));
    for (int64_t i = 0; i < k.size(); ++i) {
      const int64_t at = i % most;
      widen(reinterpret_cast<const bf16*>(from) + i * width, m.size(), wide + at * m.size(), w_.level());
      if (at + 1 < most && i + 1 < k.size()) continue;
      kernel_.pack_left_transposed(fill, m.size(), m.size(), at + 1, tiles.data + (i - at) * tiles.step_bytes,
                                   tiles.tile_bytes);
    }
  }

  const PackedProduct& p_;
  const GemmKernel& kernel_;
  WeightPanels w_;
  int64_t depth_, block_, size_;  // K, the depths of a part, bytes of an element
  bool keeps_sums_;               // of parts of the depth, in the buffers
};

}  // namespace

void gemm_both_packed(const PackedProduct& product, Isa level) { BothPacked(product, level).run(); }

}  // namespace nibble::ops::cpu
