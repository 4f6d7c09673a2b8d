#include "nibble/core/nn/cut.h"

namespace nibble {

namespace {

// Calls copy(byte in the part, byte in the whole, bytes) for every run that lies together in both.
template <typename Copy>
void each_run(const Cut& cut, size_t element, const Copy& copy) {
  const int64_t width = cut.whole.size() > 1 ? cut.whole[1] : 1;
  const std::vector<Range> columns = cut.whole.size() > 1 ? cut.columns : all_of(1);
  size_t at = 0;
  const auto run = [&](int64_t begin, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * element;
    copy(at, static_cast<size_t>(begin) * element, bytes);
    at += bytes;
  };
  for (const Range& rows : cut.rows) {
    if (count_of(columns) == width) {
      run(rows.begin * width, rows.size() * width);
      continue;
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Range& range : columns) run(row * width + range.begin, range.size());
    }
  }
}

}  // namespace

int64_t count_of(const std::vector<Range>& ranges) {
  int64_t count = 0;
  for (const Range& range : ranges) count += range.size();
  return count;
}

Shape Cut::part() const {
  if (whole.size() == 1) return {count_of(rows)};
  return {count_of(rows), count_of(columns)};
}

bool Cut::cuts_rows() const { return !whole.empty() && count_of(rows) < whole[0]; }
bool Cut::cuts_columns() const { return whole.size() > 1 && count_of(columns) < whole[1]; }

Cut Cut::transposed() const {
  if (whole.size() < 2) return *this;
  return {{whole[1], whole[0]}, columns, rows};
}

Tensor cut_out(const Tensor& whole, const Cut& cut, MemoryPool& pool) {
  NIBBLE_CHECK(whole.shape() == cut.whole, "shape of what is cut");
  if (cut.rows.size() == 1 && !cut.cuts_columns()) return whole.rows(cut.rows[0].begin, cut.rows[0].end);
  Tensor part = Tensor::empty(pool, cut.part(), whole.dtype(), "part of a weight");
  if (!part.device().has_bytes()) return part;
  each_run(cut, dtype_size(whole.dtype()), [&](size_t in_part, size_t in_whole, size_t bytes) {
    part.device().copy(whole.address() + in_whole, part.address() + in_part, bytes);
  });
  return part;
}

void put_back(const Tensor& part, const Cut& cut, Tensor& whole) {
  NIBBLE_CHECK(whole.shape() == cut.whole && part.shape() == cut.part() && part.dtype() == whole.dtype(),
               "shape of a part");
  each_run(cut, dtype_size(whole.dtype()), [&](size_t in_part, size_t in_whole, size_t bytes) {
    whole.device().copy(part.address() + in_part, whole.address() + in_whole, bytes);
  });
}

}  // namespace nibble
