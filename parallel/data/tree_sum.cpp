#include "nibble/parallel/data/tree_sum.h"

#include <algorithm>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/comm/meta_comm.h"

namespace nibble {

namespace {

constexpr int64_t kBucket = int64_t{4} << 20;  // elements that are exchanged at a time: bounds the receive buffer

// The row that gets the sum of rows [begin, end); none where all of them are absent.
std::optional<int64_t> sum_rows(const Tensor& parts, const std::vector<bool>& present, int64_t begin, int64_t end) {
  if (end - begin == 1) return present[static_cast<size_t>(begin)] ? std::optional(begin) : std::nullopt;
  const int64_t middle = begin + (end - begin) / 2;
  const auto left = sum_rows(parts, present, begin, middle), right = sum_rows(parts, present, middle, end);
  if (!left || !right) return left ? left : right;
  Tensor sum = parts.rows(*left, *left + 1);
  ops::add(parts.rows(*right, *right + 1), sum);
  return left;
}

bool sum_range(std::span<const double> values, const std::vector<bool>& present, size_t begin, size_t end,
               double& out) {
  if (end - begin == 1) {
    out = values[begin];
    return present[begin];
  }
  const size_t middle = begin + (end - begin) / 2;
  if (!sum_range(values, present, begin, middle, out)) return sum_range(values, present, middle, end, out);
  double right = 0;
  if (sum_range(values, present, middle, end, right)) out += right;
  return true;
}

Tensor as(DType dtype, const Tensor& values, MemoryPool& pool) {
  if (dtype == values.dtype()) return values;
  Tensor converted = Tensor::empty(pool, values.shape(), dtype, "values on the wire");
  ops::cast(values, converted);
  return converted;
}

std::vector<size_t> in_bytes(std::span<const int64_t> bounds, DType dtype) {
  std::vector<size_t> result;
  for (const int64_t bound : bounds) result.push_back(static_cast<size_t>(bound) * dtype_size(dtype));
  return result;
}

// On a device without bytes one of many equal pieces tells what all take.
int64_t to_run(const Tensor& values, int64_t count, int64_t piece) {
  return values.device().has_bytes() ? count : std::min(count, piece);
}

// Each rank's sum of its share [bounds[rank], bounds[rank + 1]) of `values`.
Tensor summed_share(Communicator& ranks, std::string_view operation, const Tensor& values,
                    std::span<const int64_t> bounds, const std::vector<bool>& present, const Wire& wire,
                    MemoryPool& pool) {
  const MemoryPool::Use use(pool, MemoryUse::workspace);
  const size_t me = static_cast<size_t>(ranks.rank());
  const int64_t count = bounds[me + 1] - bounds[me];
  const Tensor sent = as(wire.dtype, values, pool);
  Tensor received = Tensor::empty(pool, {ranks.size() * count}, wire.dtype, "parts of a sum");
  std::vector<size_t> blocks(static_cast<size_t>(ranks.size()) + 1);
  for (size_t r = 0; r < blocks.size(); ++r) blocks[r] = r * static_cast<size_t>(count) * dtype_size(wire.dtype);
  ranks.all_to_all(operation, sent, in_bytes(bounds, wire.dtype), received, blocks);
  const Tensor parts = as(DType::f32, received, pool);
  return tree_sum(parts.reshape({ranks.size(), count}), present);
}

}  // namespace

std::vector<bool> any_of_groups(const std::vector<bool>& present, int64_t group) {
  std::vector<bool> any(present.size() / static_cast<size_t>(group));
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i]) any[i / static_cast<size_t>(group)] = true;
  }
  return any;
}

Tensor tree_sum(const Tensor& parts, const std::vector<bool>& present) {
  const std::optional<int64_t> row = sum_rows(parts, present, 0, parts.dim(0));
  NIBBLE_CHECK(row.has_value(), "a sum has at least one part");
  return parts.rows(*row, *row + 1).reshape({parts.dim(1)});
}

void all_reduce_tree(Communicator& ranks, std::string_view operation, Tensor& values, const std::vector<bool>& present,
                     const Wire& wire, MemoryPool& pool) {
  if (ranks.size() == 1) return;
  const Tensor flat = values.reshape({values.numel()});
  const int64_t size = ranks.size(), end = to_run(flat, flat.numel(), kBucket);
  const MetaComm::Piece piece(ranks, static_cast<double>(end) / static_cast<double>(flat.numel()));
  for (int64_t begin = 0; begin < end; begin += kBucket) {
    Tensor bucket = flat.rows(begin, std::min(flat.numel(), begin + kBucket));
    std::vector<int64_t> bounds;
    for (int64_t r = 0; r <= size; ++r) bounds.push_back(bucket.numel() * r / size);
    const Tensor sum = summed_share(ranks, operation, bucket, bounds, present, wire, pool);
    if (wire.dtype == DType::f32) {
      ranks.all_gather(operation, sum, bucket, in_bytes(bounds, wire.dtype));
      continue;
    }
    Tensor narrow = Tensor::empty(pool, bucket.shape(), wire.dtype, "values on the wire");
    ranks.all_gather(operation, as(wire.dtype, sum, pool), narrow, in_bytes(bounds, wire.dtype));
    ops::cast(narrow, bucket);
  }
}

void reduce_scatter_tree(Communicator& ranks, std::string_view operation, const Tensor& values,
                         std::span<const int64_t> bounds, Tensor& mine, const std::vector<bool>& present,
                         const Wire& wire, MemoryPool& pool) {
  const size_t me = static_cast<size_t>(ranks.rank());
  if (ranks.size() == 1) {
    if (present[0]) ops::add(values.rows(bounds[0], bounds[1]), mine);
    return;
  }
  // Every rank's share passes through in pieces, so that what is received stays small beside the values.
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < bounds.size(); ++r) longest = std::max(longest, bounds[r + 1] - bounds[r]);
  const int64_t piece = std::max<int64_t>(kBucket / ranks.size(), 1);
  if (longest <= piece) {
    return ops::add(summed_share(ranks, operation, values, bounds, present, wire, pool), mine);
  }
  const int64_t end = to_run(values, longest, piece);
  const MetaComm::Piece one(ranks, static_cast<double>(end) / static_cast<double>(longest));
  for (int64_t at = 0; at < end; at += piece) {
    std::vector<int64_t> begins, counts = {0};
    for (size_t r = 0; r + 1 < bounds.size(); ++r) {
      begins.push_back(std::min(bounds[r] + at, bounds[r + 1]));
      counts.push_back(counts.back() + std::min(bounds[r + 1], begins.back() + piece) - begins.back());
    }
    const MemoryPool::Use use(pool, MemoryUse::workspace);
    Tensor chosen = Tensor::empty(pool, {counts.back()}, DType::f32, "values on the wire");
    for (size_t r = 0; r + 1 < counts.size(); ++r) {
      const size_t bytes = static_cast<size_t>(counts[r + 1] - counts[r]) * sizeof(float);
      if (bytes == 0) continue;
      chosen.device().copy(values.address() + static_cast<size_t>(begins[r]) * sizeof(float),
                           chosen.address() + static_cast<size_t>(counts[r]) * sizeof(float), bytes);
    }
    Tensor target = mine.rows(begins[me] - bounds[me], begins[me] - bounds[me] + counts[me + 1] - counts[me]);
    ops::add(summed_share(ranks, operation, chosen, counts, present, wire, pool), target);
  }
}

double all_reduce_tree(Communicator& ranks, std::string_view operation, double value,
                       const std::vector<bool>& present) {
  const size_t size = static_cast<size_t>(ranks.size());
  if (size == 1) return value;
  MemoryPool pool;
  const Tensor mine = Tensor::from<double>(pool, {1}, std::span<const double>(&value, 1));
  Tensor all = Tensor::empty(pool, {ranks.size()}, DType::f64);
  ranks.all_gather(operation, mine, all);
  double sum = 0;
  sum_range(all.span<const double>(), present, 0, size, sum);
  return sum;
}

}  // namespace nibble
