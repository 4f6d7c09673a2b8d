#include "nibble/parallel/tensor/global_tensor.h"

#include <algorithm>

#include "nibble/core/ops/optimizer.h"

namespace nibble {

namespace {

// What a box [begin, end) of a shard's dimension is in the global tensor.
struct Piece {
  int64_t at;  // counted from the box's begin
  Range global;
};

std::vector<Piece> pieces_of(const std::vector<Range>& ranges, int64_t begin, int64_t end) {
  std::vector<Piece> pieces;
  int64_t first = 0;  // of the range, in the shard
  for (const Range& range : ranges) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + range.size());
    if (from < to) pieces.push_back({from - begin, {range.begin + from - first, range.begin + to - first}});
    first += range.size();
  }
  return pieces;
}

// The ranges of a spec as a tensor, for the first rank to read.
Tensor described(const ShardSpec& spec, MemoryPool& pool) {
  std::vector<int64_t> numbers = {static_cast<int64_t>(spec.rows.size()), static_cast<int64_t>(spec.columns.size())};
  for (const std::vector<Range>* ranges : {&spec.rows, &spec.columns}) {
    for (const Range& range : *ranges) numbers.insert(numbers.end(), {range.begin, range.end});
  }
  constexpr size_t kMost = 64;
  NIBBLE_CHECK(numbers.size() <= kMost, "ranges of a shard");
  numbers.resize(kMost, 0);
  return Tensor::from<int64_t>(pool, {static_cast<int64_t>(kMost)}, numbers);
}

ShardSpec read_spec(const Tensor& description, const Shape& global) {
  const int64_t* number = description.data<const int64_t>();
  ShardSpec spec{global, std::vector<Range>(static_cast<size_t>(number[0])),
                 std::vector<Range>(static_cast<size_t>(number[1]))};
  number += 2;
  for (std::vector<Range>* ranges : {&spec.rows, &spec.columns}) {
    for (Range& range : *ranges) {
      range = {number[0], number[1]};
      number += 2;
    }
  }
  return spec;
}

}  // namespace

std::vector<CheckpointSlice> global_slices(const CheckpointSlice& slice, const ShardSpec& spec) {
  if (!spec) return {slice};
  if (slice.name.ends_with(".absmax")) {  // of blocks of the 8-bit state, which shards of whole matrices begin with
    NIBBLE_CHECK(spec.rows.size() == 1 && !spec.slices_columns(), slice.name + ": blocks of a shard");
    const int64_t count = element_count(spec.global);
    const int64_t begin = spec.rows.front().begin * (count / spec.global.front());
    return {{slice.name,
             slice.value,
             {ops::eight_bit_blocks(count)},
             {begin / ops::kEightBitBlock + slice.offset.front()}}};
  }
  NIBBLE_CHECK(slice.global_shape == spec.shape(), slice.name + ": shape of a shard");
  std::vector<CheckpointSlice> result;
  const int64_t rows = slice.value.dim(0);
  for (const Piece& row : pieces_of(spec.rows, slice.offset[0], slice.offset[0] + rows)) {
    const Tensor of_rows = slice.value.rows(row.at, row.at + row.global.size());
    if (spec.global.size() != 2) {
      Shape offset = slice.offset;
      offset[0] = row.global.begin;
      result.push_back({slice.name, of_rows, spec.global, offset});
      continue;
    }
    const int64_t columns = slice.value.dim(1);
    const std::vector<Piece> found = pieces_of(spec.columns, slice.offset[1], slice.offset[1] + columns);
    if (found.size() == 1) {
      result.push_back({slice.name, of_rows, spec.global, {row.global.begin, found[0].global.begin}});
      continue;
    }
    // Several ranges of columns: a box shares the bytes of a row's run only.
    for (int64_t i = 0; i < row.global.size(); ++i) {
      const Tensor line = of_rows.rows(i, i + 1).reshape({columns});
      for (const Piece& column : found) {
        const Tensor run = line.rows(column.at, column.at + column.global.size());
        result.push_back(
            {slice.name, run.reshape({1, run.numel()}), spec.global, {row.global.begin + i, column.global.begin}});
      }
    }
  }
  return result;
}

Tensor gather_on_first(Communicator& ranks, const std::string& name, const Tensor& shard, const ShardSpec& spec,
                       MemoryPool& pool) {
  if (!spec) return ranks.rank() == 0 ? shard : Tensor();
  if (ranks.rank() > 0) {
    const Tensor description = described(spec, pool);
    ranks.send("export", description, 0);
    ranks.send("export", shard, 0);
    Tensor arrived = Tensor::zeros(pool, {1}, DType::u8);  // not before may the shard go
    ranks.receive("export", arrived, 0);
    return {};
  }
  Tensor global = Tensor::empty(pool, spec.global, shard.dtype(), name);
  write_shard(shard.to(pool), spec, global);
  for (int r = 1; r < ranks.size(); ++r) {
    Tensor description = described({}, pool);
    ranks.receive("export", description, r);
    const ShardSpec theirs = read_spec(description, spec.global);
    Tensor value = Tensor::empty(pool, theirs.shape(), shard.dtype(), name);
    ranks.receive("export", value, r);
    write_shard(value, theirs, global);
    ranks.send("export", Tensor::zeros(pool, {1}, DType::u8), r);
  }
  return global;
}

}  // namespace nibble
