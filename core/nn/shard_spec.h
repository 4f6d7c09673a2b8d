#pragma once
// A shard of a global tensor: which of its rows and columns are here.

#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// Indices [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Which rows and columns of a matrix [n, m], which elements of a vector [n], or which (as rows) of several matrices
/// [e, n, m], one range after another. Fused projections have several: those of query, key and value.
struct ShardSpec {
  Shape global;                ///< shape of the global tensor; empty: it is not sharded
  std::vector<Range> rows;     ///< of the first dimension
  std::vector<Range> columns;  ///< of the second; empty for a vector

  explicit operator bool() const { return !global.empty(); }
  /// Of the shard.
  Shape shape() const;
  /// Whether it has only some of the rows, or of the columns.
  bool slices_rows() const;
  bool slices_columns() const;
  /// Of the transpose.
  ShardSpec transposed() const;
};

/// [0, n)
inline std::vector<Range> all_of(int64_t n) { return {{0, n}}; }

/// The shard of `global`, of any dtype. Shares the bytes where it is one run of whole rows, else a copy.
Tensor slice_shard(const Tensor& global, const ShardSpec& spec, MemoryPool& pool);
/// The opposite: copies `shard` to its place in `global`.
void write_shard(const Tensor& shard, const ShardSpec& spec, Tensor& global);

}  // namespace nibble
