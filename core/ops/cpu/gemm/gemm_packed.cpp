#include "nibble/core/ops/cpu/gemm/gemm_packed.h"

#include <algorithm>
#include <cstring>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"

namespace nibble::ops::cpu {

namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Rows and columns of W that are filled and packed at once. A register's 16 rows x 512 are at most 32 KB, what the
// first cache level holds; 32 rows of a panel's columns, at most 512, are 64 KB and stay in the second.
constexpr int64_t kFillDepth = 512, kFillRows = 32;
// Fewer multiplications are not cut further: 2^22 take 20 us at 64 a cycle (bf16) and 3 GHz, and a job costs about 1 us
// besides (its turn in the team, its share of a panel's edges), a twentieth.
constexpr int64_t kMinJobMultiplications = int64_t{1} << 22;
// With 16 jobs of one size the last of up to 8 threads ends at most a third later than the mean (7 threads: 3 jobs of
// 16 / 7).
constexpr int64_t kMinJobs = 16;
// Rows x columns of a job: its f32 sums are 1 MiB of the 2 MiB of a thread's buffers. They are read and written once
// in depth_block multiplications, so it does not count which cache they lie in; a packed panel serves all rows of a
// job.
constexpr int64_t kMaxJobSums = int64_t{1} << 18;

bool reads_left_in_place(const PackedProduct& p, const GemmKernel& kernel) {
  return !p.a_transposed && p.a.dtype() == kernel.compute && p.a.dim(1) % kernel.depth_step == 0;
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// The sizes of one product and how it is cut into jobs: chunks of columns by chunks of rows, the last chunks of
/// columns by shorter ones, so that the threads end together without W being packed often.
struct Plan {
  const GemmKernel& kernel;
  int64_t rows, columns, depth;       // M, N, K
  int64_t chunk_rows, chunk_columns;  // of one job
  int64_t depth_block;                // of one panel
  bool left_in_place;
  int64_t last_chunks = 0, last_rows = 1;  // chunks of columns that are cut into jobs of last_rows instead

  Plan(const PackedProduct& p, const GemmKernel& kernel_of_level) : kernel(kernel_of_level) {
    rows = p.c.dim(0);
    columns = p.c.dim(1);
    depth = p.a.dim(p.a_transposed ? 0 : 1);
    left_in_place = reads_left_in_place(p, kernel);
    depth_block = kernel.depth_block;
    chunk_columns = kernel.panel_columns;
    if (!left_in_place) {
      depth_block = packed_left_depth(kernel);
      chunk_columns *= 2;
    }
    const int64_t chunks = divide_up(rows, kMaxJobSums / chunk_columns + kernel.rows);
    chunk_rows = round_up(divide_up(rows, chunks), kernel.rows);
    chunk_columns = even_columns(chunk_columns);
    while (jobs() < kMinJobs && work() > kMinJobMultiplications) {
      const bool narrow = left_in_place && chunk_columns > kernel.width;
      if (narrow || (chunk_rows <= 4 * kLeftGroup && chunk_columns > kernel.panel_columns)) {
        chunk_columns = even_columns(std::max(kernel.width, chunk_columns / 2 / kernel.width * kernel.width));
      } else if (!left_in_place && chunk_rows > kLeftGroup) {
        chunk_rows = round_up(chunk_rows / 2, kernel.rows);
      } else {
        break;
      }
    }
    if (left_in_place && threads() > 1) cut_last_chunks(threads());
  }

  // As few chunks as `most` columns allow, of nearly the same size.
  int64_t even_columns(int64_t most) const {
    return round_up(divide_up(columns, divide_up(columns, most)), kernel.width);
  }
  // What is left when every thread has had the same number of whole chunks, or the last whole ones, in about two jobs
  // a thread.
  void cut_last_chunks(int64_t threads) {
    const int64_t chunks = column_chunks();
    last_chunks = chunks % threads == 0 ? threads : chunks % threads;
    const int64_t cuts = std::min(divide_up(2 * threads, last_chunks * divide_up(rows, chunk_rows)),
                                  divide_up(work(), kMinJobMultiplications));
    last_rows = std::min(chunk_rows, std::max(kLeftGroup, round_up(divide_up(chunk_rows, cuts), kernel.rows)));
  }

  int64_t column_chunks() const { return divide_up(columns, chunk_columns); }
  int64_t whole_jobs() const { return (column_chunks() - last_chunks) * divide_up(rows, chunk_rows); }
  int64_t jobs() const { return whole_jobs() + last_chunks * divide_up(rows, last_rows); }

  struct Piece {
    Range m, n;
  };
  // Neighbouring jobs share the panel's columns of W, whose bytes are then still in the shared cache.
  Piece piece(int64_t job) const {
    const bool whole = job < whole_jobs();
    const int64_t size = whole ? chunk_rows : last_rows, cuts = divide_up(rows, size);
    const int64_t of_kind = whole ? job : job - whole_jobs();
    const int64_t m0 = of_kind % cuts * size;
    const int64_t n0 = (of_kind / cuts + (whole ? 0 : column_chunks() - last_chunks)) * chunk_columns;
    return {{m0, std::min(rows, m0 + size)}, {n0, std::min(columns, n0 + chunk_columns)}};
  }

  // Multiplications of one job.
  int64_t work() const { return std::min(rows, chunk_rows) * std::min(columns, chunk_columns) * depth; }
};

/// A product and what is prepared once of its weight.
struct Operands {
  Operands(const PackedProduct& product, Isa level) : p(product), w(product.w, level) {}
  const PackedProduct& p;
  WeightPanels w;
};

/// Fills one panel, depths `k` and columns `n` of B, as strips.
class PanelPacker {
 public:
  PanelPacker(const Operands& product, const GemmKernel& kernel, std::byte* panel, std::byte* scratch)
      : w_(product.w),
        transposed_(product.p.w_transposed),
        input_(product.p.a.dtype()),
        kernel_(kernel),
        panel_(panel),
        scratch_(scratch),
        size_(static_cast<int64_t>(dtype_size(kernel.compute))) {
    if (input_ == kernel.compute) in_place_ = w_.in_place(kernel.compute);
  }

  int64_t strip_bytes(int64_t depth) const { return round_up(depth, kernel_.depth_step) * kernel_.width * size_; }

  void pack(Range k, Range n) const {
    if (transposed_) {
      pack_transposed(k, n);
    } else {
      pack_rows(k, n);
    }
  }

 private:
  // W [N, K]: rows of W become columns of strips, a register's worth at a time.
  void pack_transposed(Range k, Range n) const {
    for (int64_t n0 = n.begin; n0 < n.end; n0 += kernel_.lanes) {
      const int64_t column = n0 - n.begin;
      std::byte* lanes =
          panel_ + column / kernel_.width * strip_bytes(k.size()) + column % kernel_.width * kernel_.depth_step * size_;
      const int64_t count = std::min(kernel_.lanes, n.end - n0);
      for (int64_t k0 = k.begin; k0 < k.end; k0 += kFillDepth) {
        const Range depth{k0, std::min(k.end, k0 + kFillDepth)};
        const auto [from, stride] = fetch({n0, n0 + count}, depth);
        kernel_.pack_transposed(from, stride, count, depth.size(), lanes + (k0 - k.begin) * kernel_.width * size_);
      }
    }
  }

  // W [K, N]: rows of W are depths.
  void pack_rows(Range k, Range n) const {
    for (int64_t k0 = k.begin; k0 < k.end; k0 += kFillRows) {
      const Range depth{k0, std::min(k.end, k0 + kFillRows)};
      const auto [from, stride] = fetch(depth, n);
      for (int64_t n0 = n.begin; n0 < n.end; n0 += kernel_.width) {
        std::byte* strip = panel_ + (n0 - n.begin) / kernel_.width * strip_bytes(k.size());
        kernel_.pack_rows(from + (n0 - n.begin) * size_, stride, std::min(kernel_.width, n.end - n0), depth.size(),
                          strip + (k0 - k.begin) * kernel_.width * size_);
      }
    }
  }

  struct Piece {
    const std::byte* data;
    int64_t stride;
  };

  // A piece of W in the compute type: in place, or expanded into scratch.
  Piece fetch(Range rows, Range cols) const {
    if (in_place_ != nullptr) return {in_place_ + (rows.begin * w_.cols() + cols.begin) * size_, w_.cols()};
    const int64_t stride = cols.size();
    auto* floats = reinterpret_cast<float*>(scratch_);
    if (input_ == DType::f32) {
      w_.fill(rows.begin, rows.end, cols.begin, cols.end, floats, stride);
    } else if (kernel_.compute == DType::bf16) {
      w_.fill(rows.begin, rows.end, cols.begin, cols.end, reinterpret_cast<bf16*>(scratch_), stride);
    } else {
      // Rounded to bf16 and widened again, in the same bytes from the end.
      const int64_t count = rows.size() * stride;
      auto* narrow = reinterpret_cast<bf16*>(floats + count);
      w_.fill(rows.begin, rows.end, cols.begin, cols.end, narrow, stride);
      for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(narrow[i]);
    }
    return {scratch_, stride};
  }

  const WeightPanels& w_;
  bool transposed_;
  DType input_;
  const GemmKernel& kernel_;
  std::byte* panel_;
  std::byte* scratch_;
  int64_t size_;
  const std::byte* in_place_ = nullptr;
};

/// How the kernel finds elements of A.
struct LeftTile {
  const std::byte* data;
  int64_t row_bytes, step_bytes;
};

template <typename From, typename To>
void pack_left(const PackedProduct& product, Range m, Range k, int64_t tile_rows, int64_t step, int64_t tile_bytes,
               std::byte* tiles) {
  const From* a = product.a.data<const From>();
  const int64_t width = product.a.dim(1);
  const int64_t row_stride = product.a_transposed ? 1 : width, depth_stride = product.a_transposed ? width : 1;
  const int64_t steps = divide_up(k.size(), step);
  for (int64_t m0 = m.begin; m0 < m.end; m0 += tile_rows, tiles += tile_bytes) {
    auto* out = reinterpret_cast<To*>(tiles);
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
          out[(s * tile_rows + r) * step + i] = value;
        }
      }
    }
  }
}

/// One job: rows m and columns n of C.
class Job {
 public:
  Job(const Operands& product, const Operands* epilogue, const Plan& plan, Range m, Range n)
      : p_(product.p),
        epilogue_(epilogue ? &epilogue->p : nullptr),
        plan_(plan),
        kernel_(plan.kernel),
        m_(m),
        n_(n),
        workspace_(gemm_workspace(kernel_)),
        packer_(product, plan.kernel, workspace_.panel, workspace_.fill),
        epilogue_packer_(epilogue ? *epilogue : product, plan.kernel, workspace_.left, workspace_.fill) {
    sums_stride_ = round_up(n.size(), kernel_.width);
    // With one panel in depth no sums are kept between panels.
    keeps_sums_ = plan.depth > plan_.depth_block;
    NIBBLE_CHECK((keeps_sums_ ? m.size() : kLeftGroup) * sums_stride_ <= workspace_.sums_size, "sums of a job");
  }

  void run() {
    for (int64_t k0 = 0; k0 < plan_.depth; k0 += plan_.depth_block) {
      const Range k{k0, std::min(plan_.depth, k0 + plan_.depth_block)};
      packer_.pack(k, n_);
      if (epilogue_ != nullptr && k.end == plan_.depth) epilogue_packer_.pack({0, epilogue_->a.dim(1)}, n_);
      for (int64_t m0 = m_.begin; m0 < m_.end; m0 += kLeftGroup) {
        const Range group{m0, std::min(m_.end, m0 + kLeftGroup)};
        float* sums = workspace_.sums + (keeps_sums_ ? (m0 - m_.begin) * sums_stride_ : 0);
        multiply_group(k, group, sums);
      }
    }
  }

 private:
  void multiply_group(Range k, Range group, float* sums) {
    const int64_t steps = divide_up(k.size(), kernel_.depth_step);
    const int64_t size = static_cast<int64_t>(dtype_size(kernel_.compute));
    LeftTile left;
    int64_t tile_bytes;
    if (plan_.left_in_place) {
      left = {p_.a.raw() + (group.begin * plan_.depth + k.begin) * size, plan_.depth * size, kernel_.depth_step * size};
      tile_bytes = kernel_.rows * left.row_bytes;
    } else {
      left = {workspace_.left, kernel_.depth_step * size, kernel_.rows * kernel_.depth_step * size};
      tile_bytes = round_up(steps * left.step_bytes, 64) + 64;
      pack(group, k, tile_bytes);
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
    for (int64_t m0 = group.begin; m0 < group.end; m0 += kernel_.rows, left.data += tile_bytes) {
      const int64_t rows = std::min(kernel_.rows, group.end - m0);
      for (int64_t n0 = 0; n0 < n_.size(); n0 += kernel_.width) {
        output.sums = sums + (m0 - group.begin) * sums_stride_ + n0;
        output.c = c + (m0 * plan_.columns + n_.begin + n0) * c_size;
        TileInput input = {.a = left.data,
                           .a_row_bytes = left.row_bytes,
                           .a_step_bytes = left.step_bytes,
                           .b = workspace_.panel + n0 / kernel_.width * packer_.strip_bytes(k.size()),
                           .steps = steps,
                           .epilogue = nullptr};
        TileInput epilogue;
        if (last && epilogue_ != nullptr) {
          epilogue = epilogue_tile(m0, n0);
          input.epilogue = &epilogue;
        }
        kernel_.multiply(rows, std::min(kernel_.width, n_.size() - n0), input, output);
      }
    }
  }

  TileInput epilogue_tile(int64_t m0, int64_t n0) const {
    const int64_t size = static_cast<int64_t>(dtype_size(kernel_.compute)), depth = epilogue_->a.dim(1);
    return {.a = epilogue_->a.raw() + m0 * depth * size,
            .a_row_bytes = depth * size,
            .a_step_bytes = kernel_.depth_step * size,
            .b = workspace_.left + n0 / kernel_.width * epilogue_packer_.strip_bytes(depth),
            .steps = divide_up(depth, kernel_.depth_step),
            .epilogue = nullptr};
  }

  void pack(Range m, Range k, int64_t tile_bytes) {
    const DType input = p_.a.dtype();
    if (p_.a_transposed && input == kernel_.compute && kernel_.pack_left_transposed != nullptr) {
      const int64_t width = p_.a.dim(1), size = static_cast<int64_t>(dtype_size(input));
      kernel_.pack_left_transposed(p_.a.raw() + (k.begin * width + m.begin) * size, width, m.size(), k.size(),
                                   workspace_.left, tile_bytes);
      return;
    }
    const auto pack = kernel_.compute == DType::bf16 ? pack_left<bf16, bf16>
                      : input == DType::bf16         ? pack_left<bf16, float>
                                                     : pack_left<float, float>;
    pack(p_, m, k, kernel_.rows, kernel_.depth_step, tile_bytes, workspace_.left);
  }

  const PackedProduct& p_;
  const PackedProduct* epilogue_;
  const Plan& plan_;
  const GemmKernel& kernel_;
  Range m_, n_;
  GemmWorkspace workspace_;
  PanelPacker packer_, epilogue_packer_;
  int64_t sums_stride_;
  bool keeps_sums_;
};

}  // namespace

const GemmKernel& gemm_kernel(Isa level, DType input) {
  if (level == Isa::avx512_bf16 && input == DType::bf16) return kGemmAvx512Bf16;
  if (level >= Isa::avx512) return kGemmAvx512;
  return level == Isa::avx2 ? kGemmAvx2 : kGemmBaseline;
}

bool gemm_packed_fuses(const PackedProduct& product, const PackedProduct& epilogue, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, product.a.dtype());
  const int64_t right = kernel.panel_columns * round_up(epilogue.a.dim(1), kernel.depth_step) *
                        static_cast<int64_t>(dtype_size(kernel.compute));
  return reads_left_in_place(product, kernel) && epilogue.a.dtype() == product.a.dtype() && epilogue.a.dim(1) > 0 &&
         product.alpha == 1 && epilogue.alpha == 1 && reads_left_in_place(epilogue, kernel) &&
         right <= gemm_workspace(kernel).left_size;
}

void gemm_packed(const PackedProduct& product, Isa level, const PackedProduct* epilogue) {
  const Plan plan(product, gemm_kernel(level, product.a.dtype()));
  const Operands operands(product, level);
  std::optional<Operands> narrow;
  if (epilogue != nullptr) narrow.emplace(*epilogue, level);
  parallel_for(plan.jobs(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const auto [m, n] = plan.piece(job);
      Job(operands, narrow ? &*narrow : nullptr, plan, m, n).run();
    }
  });
}

}  // namespace nibble::ops::cpu
