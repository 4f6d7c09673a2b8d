#pragma once
// Plain reference of ops/int8/int8_error.h.

#include <array>
#include <cmath>

#include "nibble/core/ops/int8/int8_error.h"
#include "nibble/core/ops/ref/int8_product.h"

namespace nibble::ops::ref {

/// x [rows, depth], weights of `levels` numbers on either side of 0
template <typename Element>
double int8_error(const Element* x, int64_t rows, const WeightView& w, bool transposed, int64_t levels) {
  const int64_t depth = transposed ? w.cols() : w.rows(), columns = transposed ? w.rows() : w.cols();
  const auto square = [](double value) { return value * value; };
  double noise = 0, signal = 0;
  for (int64_t i = 0; i < kInt8SampledRows && int8_sampled_row(rows, i) < rows; ++i) {
    const Element* row = x + int8_sampled_row(rows, i) * depth;
    for (int64_t run = 0; run < kInt8Runs; ++run) {
      for (int64_t n = Int8SampledRun(columns, run).begin; n < Int8SampledRun(columns, run).end; ++n) {
        for (int64_t begin = 0; begin < depth; begin += kInt8Group) {
          const int64_t end = std::min(depth, begin + kInt8Group);
          std::array<float, kInt8Group> weights{};
          float most_x = 0, most_w = 0;
          for (int64_t k = begin; k < end; ++k) {
            const float weight = transposed ? element(w, n, k) : element(w, k, n);
            weights[static_cast<size_t>(k - begin)] = weight;
            most_x = larger(most_x, static_cast<float>(row[k]));
            most_w = larger(most_w, weight);
          }
          for (int64_t k = begin; k < end; ++k) {
            const double value = square(static_cast<float>(row[k]));
            const double of_weight = square(weights[static_cast<size_t>(k - begin)]);
            signal += value * of_weight;
            noise += square(most_x / 127) / 12 * of_weight + value * square(most_w / static_cast<double>(levels)) / 12;
          }
        }
      }
    }
  }
  return noise == 0 ? 0 : std::sqrt(noise / signal);
}

}  // namespace nibble::ops::ref
