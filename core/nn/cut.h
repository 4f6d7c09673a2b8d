#pragma once
// The part of a matrix that one of several ranks holds when they compute a layer together (tensor parallelism).

#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// Indices [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Which rows and columns of a matrix [n, m], or which elements of a vector [n], a rank holds, one range after another.
/// Fused projections have several: those of query, key and value.
struct Cut {
  Shape whole;                 ///< shape of what is cut; empty: nothing is, the rank holds all of it
  std::vector<Range> rows;     ///< of the first dimension
  std::vector<Range> columns;  ///< of the second; empty for a vector

  explicit operator bool() const { return !whole.empty(); }
  /// Shape of the part.
  Shape part() const;
  /// Whether it holds only some of the rows, or of the columns.
  bool cuts_rows() const;
  bool cuts_columns() const;
  /// Of the transpose.
  Cut transposed() const;
};

/// [0, n)
inline std::vector<Range> all_of(int64_t n) { return {{0, n}}; }
/// Indices in all ranges together.
int64_t count_of(const std::vector<Range>& ranges);

/// The part of `whole`, of any dtype. Shares the bytes where the part is one run of whole rows, else a copy.
Tensor cut_out(const Tensor& whole, const Cut& cut, MemoryPool& pool);
/// The opposite: copies `part` to its place in `whole`.
void put_back(const Tensor& part, const Cut& cut, Tensor& whole);

}  // namespace nibble
