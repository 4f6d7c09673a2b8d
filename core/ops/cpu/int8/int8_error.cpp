#include "nibble/core/ops/int8/int8_error.h"

#include <array>
#include <cmath>
#include <vector>

#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/gemm/gemm_plan.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"
#include "nibble/core/ops/cpu/int8/int8_codes.h"

namespace nibble::ops::cpu {

namespace {

/// Sums of squares at each depth of a group, and of the largest magnitudes of the rows (or columns) that were summed.
struct GroupSquares {
  std::array<float, kInt8Group> each{};
  double largest = 0;
};

template <typename Element>
GroupSquares input_squares(const Element* x, int64_t rows, int64_t depth, Range k) {
  GroupSquares result;
  std::array<float, kInt8Group> values;
  for (int64_t i = 0; i < kInt8SampledRows && int8_sampled_row(rows, i) < rows; ++i) {
    const Element* from = x + int8_sampled_row(rows, i) * depth + k.begin;
    for (size_t d = 0; d < static_cast<size_t>(k.size()); ++d) {
      values[d] = static_cast<float>(from[d]);
      result.each[d] += values[d] * values[d];
    }
    const double most = int8_largest(values.data(), k.size());
    result.largest += most * most;
  }
  return result;
}

GroupSquares weight_squares(const WeightPanels& w, bool transposed, int64_t columns, Range k) {
  GroupSquares result;
  alignas(64) std::array<float, kInt8Group * kInt8Run> values;
  for (int64_t i = 0; i < kInt8Runs; ++i) {
    const Int8SampledRun run(columns, i);
    const int64_t count = run.end - run.begin;
    if (count == 0) continue;
    std::array<float, kInt8Run> most{};
    if (transposed) {
      w.fill(run.begin, run.end, k.begin, k.end, values.data(), k.size());
      for (int64_t n = 0; n < count; ++n) {
        const float* column = values.data() + n * k.size();
        for (size_t d = 0; d < static_cast<size_t>(k.size()); ++d) result.each[d] += column[d] * column[d];
        most[static_cast<size_t>(n)] = int8_largest(column, k.size());
      }
    } else {
      w.fill(k.begin, k.end, run.begin, run.end, values.data(), count);
      for (int64_t d = 0; d < k.size(); ++d) {
        const float* row = values.data() + d * count;
        float sum = 0;
        for (int64_t n = 0; n < count; ++n) sum += row[n] * row[n];
        result.each[static_cast<size_t>(d)] += sum;
        int8_keep_larger(row, count, most.data());
      }
    }
    for (const float each : most) result.largest += static_cast<double>(each) * each;
  }
  return result;
}

template <typename Element>
double error(const Element* x, int64_t rows, const WeightPanels& panels, const WeightView& w, bool transposed) {
  constexpr int64_t kGroupsOfPiece = 4;  // some 10 us
  const int64_t depth = transposed ? w.cols() : w.rows(), columns = transposed ? w.rows() : w.cols();
  const int64_t groups = divide_up(depth, kInt8Group);
  const double input_step = 1.0 / (12 * 127 * 127), levels = static_cast<double>(int8_levels());
  const double weight_step = 1.0 / (12 * levels * levels);
  struct Sums {
    double noise = 0, signal = 0;
  };
  std::vector<Sums> sums(static_cast<size_t>(groups));
  parallel_each(groups, kGroupsOfPiece, [&](int64_t g) {
    const Range k{g * kInt8Group, std::min(depth, (g + 1) * kInt8Group)};
    const GroupSquares input = input_squares(x, rows, depth, k),
                       weight = weight_squares(panels, transposed, columns, k);
    double inputs = 0, weights = 0;
    Sums& sum = sums[static_cast<size_t>(g)];
    for (size_t d = 0; d < static_cast<size_t>(k.size()); ++d) {
      sum.signal += static_cast<double>(input.each[d]) * weight.each[d];
      inputs += input.each[d];
      weights += weight.each[d];
    }
    sum.noise = input.largest * input_step * weights + weight.largest * weight_step * inputs;
  });
  Sums total;
  for (const Sums& sum : sums) {
    total.noise += sum.noise;
    total.signal += sum.signal;
  }
  return total.noise == 0 ? 0 : std::sqrt(total.noise / total.signal);
}

}  // namespace

double int8_error(const Tensor& x, const WeightView& w, bool transposed) {
  const WeightPanels panels(w, isa());
  if (x.dtype() == DType::bf16) return error(x.data<const bf16>(), x.dim(0), panels, w, transposed);
  return error(x.data<const float>(), x.dim(0), panels, w, transposed);
}

}  // namespace nibble::ops::cpu
