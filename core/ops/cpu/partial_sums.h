#pragma once
// Sums over rows of gradients that all rows share: blocks of rows are summed apart and added in order, so that the
// result does not depend on the number of threads.

#include <cstdint>
#include <memory>

#include "nibble/core/base/parallel.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops::cpu {

/// Rows whose sums one block holds.
inline constexpr int64_t kGradientRows = 64;

class PartialSums {
 public:
  /// total: [width] f32, or undefined if it is not wanted.
  PartialSums(int64_t rows, int64_t width, const Tensor& total) : width_(width) {
    if (!total) return;
    blocks_ = (rows + kGradientRows - 1) / kGradientRows;
    values_ = std::make_unique<float[]>(static_cast<size_t>(blocks_ * width));
  }
  /// Zeros [width] for the block of rows that starts with `begin`, a multiple of kGradientRows; null if not wanted.
  float* block(int64_t begin) { return values_ ? values_.get() + begin / kGradientRows * width_ : nullptr; }
  void add_to(Tensor& total) {
    if (!values_) return;
    float* sums = total.data<float>();
    parallel_for(width_, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t k = 0; k < blocks_; ++k) {
        const float* from = values_.get() + k * width_;
        for (int64_t i = begin; i < end; ++i) sums[i] += from[i];
      }
    });
  }

 private:
  int64_t width_, blocks_ = 0;
  std::unique_ptr<float[]> values_;
};

}  // namespace nibble::ops::cpu
