#include <algorithm>
#include <vector>

#include "nibble/core/base/parallel_ranges.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/gemm_workspace.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"

namespace nibble::ops::cpu {

namespace {

// Elements of W that are filled at once: 32 KB of f32, what the first cache level holds.
constexpr int64_t kFillElements = 8192;

// Rows of W that threads share the work by: their results in bf16 are a cache line. Rows that are summed at once: their
// sums are 2 KB of the stack.
constexpr int64_t kGrainRows = 32, kMostRows = 512;

/// A in the compute type, in place or widened into `copy`.
const std::byte* left_rows(const Tensor& a, DType compute, std::vector<float>& copy) {
  if (a.dtype() == compute) return a.raw();
  copy.resize(static_cast<size_t>(a.numel()));
  const bf16* from = a.data<const bf16>();
  for (size_t i = 0; i < copy.size(); ++i) copy[i] = static_cast<float>(from[i]);
  return reinterpret_cast<const std::byte*>(copy.data());
}

void fill(const WeightPanels& w, int64_t row, int64_t rows, int64_t begin, int64_t end, bool bf16_input, DType compute,
          std::byte* out) {
  const int64_t stride = end - begin;
  if (compute == DType::bf16) {
    w.fill(row, row + rows, begin, end, reinterpret_cast<bf16*>(out), stride);
    return;
  }
  auto* floats = reinterpret_cast<float*>(out);
  w.fill(row, row + rows, begin, end, floats, stride);
  if (!bf16_input) return;
  for (int64_t i = 0; i < rows * stride; ++i) floats[i] = static_cast<float>(bf16(floats[i]));
}

void store(const PackedProduct& p, const GemmKernel& kernel, const float* sums, int64_t stride, int64_t column,
           int64_t columns) {
  kernel.store(sums, p.c.dim(0), columns, result_from(p, 0, column, stride));
}

// Rows [begin, end) by the weight's own products, if it has some.
bool fused_rows(const PackedProduct& p, const WeightPanels& w, const GemmKernel& kernel, int64_t begin, int64_t end) {
  float sums[kMostRows];
  for (int64_t n = begin; n < end; n += kMostRows) {
    const int64_t count = std::min(kMostRows, end - n);
    if (!(p.a.dtype() == DType::bf16 ? w.dots(n, n + count, p.a.data<const bf16>(), sums)
                                     : w.dots(n, n + count, p.a.data<const float>(), sums))) {
      return false;
    }
    store(p, kernel, sums, kMostRows, n, count);
  }
  return true;
}

}  // namespace

bool few_rows_fit(const PackedProduct& p, Isa level) {
  return !p.a_transposed && p.w_transposed && p.c.dim(0) <= kDotRows && gemm_kernel(level, p.a.dtype()).dots != nullptr;
}

void gemm_few_rows(const PackedProduct& p, Isa level) {
  const GemmKernel& kernel = gemm_kernel(level, p.a.dtype());
  const int64_t rows = p.c.dim(0), columns = p.c.dim(1), depth = p.a.dim(1);
  const auto size = static_cast<int64_t>(dtype_size(kernel.compute));
  std::vector<float> copy;
  const std::byte* x = left_rows(p.a, kernel.compute, copy);
  const WeightPanels panels(p.w, level);
  const RowsForDots in_place = rows_for_dots(panels, p.a.dtype(), kernel);
  const int64_t piece = in_place.first != nullptr ? depth : std::min(depth, kFillElements / kDotRows);

  parallel_ranges(columns, kGrainRows, [&](int64_t begin, int64_t end) {
    const GemmWorkspace workspace = gemm_workspace(kernel);
    if (rows == 1 && fused_rows(p, panels, kernel, begin, end)) return;
    for (int64_t n = begin; n < end; n += kDotRows) {
      const int64_t count = std::min(kDotRows, end - n);
      float sums[kDotRows * kDotRows] = {}, part[kDotRows * kDotRows];
      for (int64_t k = 0; k < depth; k += piece) {
        const int64_t k_end = std::min(depth, k + piece);
        const std::byte* w = workspace.fill;
        if (in_place.first != nullptr) {
          w = in_place.first + n * depth * in_place.size;
        } else {
          fill(panels, n, count, k, k_end, p.a.dtype() == DType::bf16, kernel.compute, workspace.fill);
        }
        in_place.dots(rows, count, k_end - k, x + k * size, depth, w, k_end - k, part);
        for (int64_t i = 0; i < rows * kDotRows; ++i) sums[i] += part[i];
      }
      store(p, kernel, sums, kDotRows, n, count);
    }
  });
}

}  // namespace nibble::ops::cpu
