#pragma once
// Asking memory for parts of a weight before they are read: hints, which change no result. Pieces of a weight are too
// far apart and too short for the hardware to see where they lead.

#include <cstddef>
#include <cstdint>

#include "nibble/core/ops/weight_view.h"

namespace nibble::ops::cpu {

/// A weight [row_end, cols] as it lies in memory, `bits` to an element.
struct StoredWeight {
  const std::byte* bytes;
  int64_t cols, row_end, bits;
};

/// Of 4-bit weights the codes.
StoredWeight stored(const WeightView& w);

/// Asks for row `row` of the piece that a product fills after this one, which has `rows` rows: pieces of at most 16
/// rows and 512 columns go along the rows to their end, those of more rows down the columns (PanelPacker).
void fetch_next(const StoredWeight& w, int64_t row, int64_t rows, int64_t col_begin, int64_t col_end);

/// Asks for a panel of a weight, a few cache lines at a time, while the one before it is multiplied.
class FetchAhead {
 public:
  /// Nothing.
  FetchAhead() = default;
  /// W[row_begin:row_end, col_begin:col_end] in `turns` calls of next(); nothing if these are so few that a call would
  /// have to wait for lines.
  FetchAhead(const StoredWeight& w, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
             int64_t turns);

  void next() {
    for (int64_t i = 0; i < lines_of_turn_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + line_ * kLine);
      if (++line_ < lines_of_row_) continue;
      line_ = 0;
      row_ += row_bytes_;
      --rows_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const std::byte* row_ = nullptr;
  int64_t rows_ = 0, row_bytes_ = 0, lines_of_row_ = 0, lines_of_turn_ = 0, line_ = 0;
};

}  // namespace nibble::ops::cpu
