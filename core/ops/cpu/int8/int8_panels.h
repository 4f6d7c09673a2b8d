#pragma once
#include <vector>

#include "nibble/core/ops/cpu/gemm/gemm_plan.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"
#include "nibble/core/ops/cpu/int8/int8_kernel.h"

namespace nibble::ops::cpu {

/// The weight of one product in 8 bits, as its kernel reads it: pieces rounded right before use. Thread-safe.
class Int8Panels {
 public:
  /// w must outlive it. transposed: the product is with w^T.
  Int8Panels(const WeightView& w, bool transposed, const Int8Kernel& kernel, Isa level);

  int64_t strip_bytes(int64_t depth) const { return round_up(depth, kernel_.step) * kernel_.width; }
  /// Depths k, which begin with a group, and columns n of the product: strips to `panel`, and scales [group][column],
  /// `stride` floats from one group's to the next one's, to `scales`. scratch: kScratchBytes.
  void fill(Range k, Range n, std::byte* panel, float* scales, int64_t stride, std::byte* scratch) const;

  static constexpr int64_t kScratchBytes = 128 << 10;

 private:
  struct Output;
  void fill_transposed(Range k, Range n, const Output& out) const;
  void fill_rows(Range k, Range n, const Output& out) const;
  // A row of W between col.begin and col.end, which has one scale a group, in at most one block of columns.
  void row_codes(int64_t row, Range col, const Output& out, float* scales, uint8_t* codes) const;

  const WeightView& w_;
  bool transposed_;
  const Int8Kernel& kernel_;
  WeightPanels panels_;
  std::optional<FourBitScales> scales_;  // where every row is whole blocks
  float largest_of_table_ = 0;
};

}  // namespace nibble::ops::cpu
