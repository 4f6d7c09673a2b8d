#include "nibble/core/ops/cpu/stored_weight.h"

#include <algorithm>

namespace nibble::ops::cpu {

StoredWeight stored(const WeightView& w) {
  if (w.encoding == WeightEncoding::dense) {
    return {w.dense.raw(), w.cols(), w.rows(), 8 * static_cast<int64_t>(dtype_size(w.dense.dtype()))};
  }
  return {w.four_bit.packed.raw() + w.four_bit.first_row * w.cols() / 2, w.cols(), w.rows(), 4};
}

void fetch_next(const StoredWeight& w, int64_t row, int64_t rows, int64_t col_begin, int64_t col_end) {
  constexpr int64_t kLong = 512 / 16;
  constexpr uintptr_t kLine = 64;
  const int64_t count = col_end - col_begin;
  const bool along = count >= kLong * rows;
  if (along && col_end < w.cols) {
    col_begin = col_end;
  } else {
    row += rows;
    if (along) col_begin = 0;
  }
  if (row >= w.row_end) return;
  const int64_t first = row * w.cols + col_begin, last = first + std::min(count, w.cols - col_begin);
  const std::byte* line = w.bytes + first * w.bits / 8;
  line -= reinterpret_cast<uintptr_t>(line) % kLine;
  for (; line < w.bytes + last * w.bits / 8; line += kLine) __builtin_prefetch(line);
}

FetchAhead::FetchAhead(const StoredWeight& w, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                       int64_t turns) {
  constexpr int64_t kMostOfTurn = 20;  // they come while a tile is multiplied
  const int64_t bytes = (col_end - col_begin) * w.bits / 8;
  if (bytes <= 0) return;
  lines_of_row_ = (bytes - 1) / kLine + 2;  // it seldom begins with a line
  lines_of_turn_ = ((row_end - row_begin) * lines_of_row_ + turns - 1) / turns;
  if (lines_of_turn_ > kMostOfTurn) return;
  rows_ = row_end - row_begin;
  row_bytes_ = w.cols * w.bits / 8;
  row_ = w.bytes + (row_begin * w.cols + col_begin) * w.bits / 8;
}

}  // namespace nibble::ops::cpu
