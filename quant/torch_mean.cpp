// The order in which torch sums a contiguous f32 row on x86 (8 lanes, 4 rows of them at a time, cascading partial
// sums). A different order gives another last bit, and with it other codes of scales that lie near a midpoint.

#include <algorithm>
#include <array>
#include <bit>

#include "nibble/quant/codec.h"

namespace nibble {

namespace {

constexpr int64_t kLanes = 8, kRows = 4, kLevels = 4;
using Row = std::array<float, kLanes * kRows>;

void add(Row& sum, const Row& part) {
  for (size_t k = 0; k < sum.size(); ++k) sum[k] += part[k];
}

void add(Row& sum, const float* part) {
  for (size_t k = 0; k < sum.size(); ++k) sum[k] += part[k];
}

// Sums `count` rows of kLanes * kRows values. Every 2^power rows a level hands its sum to the one above.
Row cascade(const float* values, int64_t count) {
  const int64_t log2 = count > 1 ? std::bit_width(static_cast<uint64_t>(count - 1)) : 0;
  const int64_t power = std::max(int64_t{4}, log2 / kLevels), step = int64_t{1} << power, mask = step - 1;
  std::array<Row, kLevels> level{};
  int64_t i = 0;
  while (i + step <= count) {
    for (int64_t j = 0; j < step; ++j, ++i) add(level[0], values + i * kLanes * kRows);
    for (int64_t j = 1; j < kLevels; ++j) {
      add(level[static_cast<size_t>(j)], level[static_cast<size_t>(j - 1)]);
      level[static_cast<size_t>(j - 1)].fill(0);
      if ((i & (mask << (j * power))) != 0) break;
    }
  }
  for (; i < count; ++i) add(level[0], values + i * kLanes * kRows);
  for (size_t j = 1; j < kLevels; ++j) add(level[0], level[j]);
  return level[0];
}

}  // namespace

float torch_mean(std::span<const float> values) {
  const int64_t count = static_cast<int64_t>(values.size());
  const int64_t vectors = count / kLanes, whole = vectors / kRows;
  Row rows = cascade(values.data(), whole);
  const auto lane = [&](int64_t row, int64_t k) -> float& { return rows[static_cast<size_t>(row * kLanes + k)]; };
  for (int64_t v = whole * kRows; v < vectors; ++v) {
    for (int64_t k = 0; k < kLanes; ++k) lane(0, k) += values[static_cast<size_t>(v * kLanes + k)];
  }
  for (int64_t row = 1; row < kRows; ++row) {
    for (int64_t k = 0; k < kLanes; ++k) lane(0, k) += lane(row, k);
  }
  float sum = 0;
  for (int64_t i = vectors * kLanes; i < count; ++i) sum += values[static_cast<size_t>(i)];
  for (int64_t k = 0; k < kLanes; ++k) sum += lane(0, k);
  return sum / static_cast<float>(count);
}

}  // namespace nibble
