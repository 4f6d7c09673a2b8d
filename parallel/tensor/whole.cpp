#include "nibble/parallel/tensor/whole.h"

#include <algorithm>

namespace nibble {

namespace {

// What a box [begin, end) of a part's dimension is in the whole: pieces [first in the part's box, range in the whole].
struct Piece {
  int64_t at;  // counted from the box's begin
  Range whole;
};

std::vector<Piece> pieces_of(const std::vector<Range>& ranges, int64_t begin, int64_t end) {
  std::vector<Piece> pieces;
  int64_t first = 0;  // of the range, in the part
  for (const Range& range : ranges) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + range.size());
    if (from < to) pieces.push_back({from - begin, {range.begin + from - first, range.begin + to - first}});
    first += range.size();
  }
  return pieces;
}

// Sizes of the ranges of a cut as a tensor, for the first rank to read.
Tensor described(const Cut& cut, MemoryPool& pool) {
  std::vector<int64_t> numbers = {static_cast<int64_t>(cut.rows.size()), static_cast<int64_t>(cut.columns.size())};
  for (const std::vector<Range>* ranges : {&cut.rows, &cut.columns}) {
    for (const Range& range : *ranges) numbers.insert(numbers.end(), {range.begin, range.end});
  }
  constexpr size_t kMost = 64;
  NIBBLE_CHECK(numbers.size() <= kMost, "ranges of a cut");
  numbers.resize(kMost, 0);
  return Tensor::from<int64_t>(pool, {static_cast<int64_t>(kMost)}, numbers);
}

Cut read_cut(const Tensor& description, const Shape& whole) {
  const int64_t* number = description.data<const int64_t>();
  Cut cut{whole, std::vector<Range>(static_cast<size_t>(number[0])),
          std::vector<Range>(static_cast<size_t>(number[1]))};
  number += 2;
  for (std::vector<Range>* ranges : {&cut.rows, &cut.columns}) {
    for (Range& range : *ranges) {
      range = {number[0], number[1]};
      number += 2;
    }
  }
  return cut;
}

}  // namespace

std::vector<CheckpointSlice> slices_of_whole(const CheckpointSlice& slice, const Cut& cut) {
  if (!cut) return {slice};
  NIBBLE_CHECK(slice.global_shape == cut.part(), slice.name + ": shape of a part");
  std::vector<CheckpointSlice> made;
  const int64_t rows = slice.value.dim(0);
  for (const Piece& row : pieces_of(cut.rows, slice.offset[0], slice.offset[0] + rows)) {
    const Tensor of_rows = slice.value.rows(row.at, row.at + row.whole.size());
    if (cut.whole.size() == 1) {
      made.push_back({slice.name, of_rows, cut.whole, {row.whole.begin}});
      continue;
    }
    const int64_t columns = slice.value.dim(1);
    const std::vector<Piece> found = pieces_of(cut.columns, slice.offset[1], slice.offset[1] + columns);
    if (found.size() == 1) {
      made.push_back({slice.name, of_rows, cut.whole, {row.whole.begin, found[0].whole.begin}});
      continue;
    }
    // Several ranges of columns: a box shares the bytes of a row's run only.
    for (int64_t i = 0; i < row.whole.size(); ++i) {
      const Tensor line = of_rows.rows(i, i + 1).reshape({columns});
      for (const Piece& column : found) {
        const Tensor run = line.rows(column.at, column.at + column.whole.size());
        made.push_back(
            {slice.name, run.reshape({1, run.numel()}), cut.whole, {row.whole.begin + i, column.whole.begin}});
      }
    }
  }
  return made;
}

Tensor whole_on_first(Communicator& ranks, const std::string& name, const Tensor& part, const Cut& cut,
                      MemoryPool& pool) {
  if (!cut) return ranks.rank() == 0 ? part : Tensor();
  if (ranks.rank() > 0) {
    const Tensor description = described(cut, pool);
    ranks.send("export", description, 0);
    ranks.send("export", part, 0);
    Tensor arrived = Tensor::zeros(pool, {1}, DType::u8);  // not before may the part go
    ranks.receive("export", arrived, 0);
    return {};
  }
  Tensor whole = Tensor::empty(pool, cut.whole, part.dtype(), name);
  put_back(part, cut, whole);
  for (int r = 1; r < ranks.size(); ++r) {
    Tensor description = described({}, pool);
    ranks.receive("export", description, r);
    const Cut theirs = read_cut(description, cut.whole);
    Tensor value = Tensor::empty(pool, theirs.part(), part.dtype(), name);
    ranks.receive("export", value, r);
    put_back(value, theirs, whole);
    ranks.send("export", Tensor::zeros(pool, {1}, DType::u8), r);
  }
  return whole;
}

}  // namespace nibble
