#include "nibble/core/nn/shard_spec.h"

#include "nibble/core/ops/columns.h"

namespace nibble {

namespace {

int64_t count_of(const std::vector<Range>& ranges) {
  int64_t count = 0;
  for (const Range& range : ranges) count += range.size();
  return count;
}

Tensor as_matrix(const Tensor& tensor) {
  const Shape& shape = tensor.shape();
  return tensor.reshape({shape[0], element_count(Shape(shape.begin() + 1, shape.end()))});
}

// Calls copy(rows of the shard, its column, the same rows of the global tensor, the range of its columns) for every
// block that lies together in both.
template <typename Copy>
void each_block(const Tensor& shard, const Tensor& global, const ShardSpec& spec, const Copy& copy) {
  const Tensor from = as_matrix(global), to = as_matrix(shard);
  const std::vector<Range> columns = spec.global.size() == 2 ? spec.columns : all_of(from.dim(1));
  int64_t row = 0;
  for (const Range& rows : spec.rows) {
    int64_t column = 0;
    for (const Range& range : columns) {
      copy(to.rows(row, row + rows.size()), column, from.rows(rows.begin, rows.end), range);
      column += range.size();
    }
    row += rows.size();
  }
}

// y [T, .] columns from y_begin on = x [T, .] columns [begin, begin + count).
void copy_columns(const Tensor& x, int64_t begin, Tensor y, int64_t y_begin, int64_t count, MemoryPool& pool) {
  if (y.dim(1) == count) return ops::copy_columns_out(x, begin, y);
  if (x.dim(1) == count) return ops::copy_columns_in(x, y_begin, y);
  Tensor block = Tensor::empty(pool, {x.dim(0), count}, x.dtype(), "shard of a weight");
  ops::copy_columns_out(x, begin, block);
  ops::copy_columns_in(block, y_begin, y);
}

}  // namespace

Shape ShardSpec::shape() const {
  Shape shape = global;
  shape[0] = count_of(rows);
  if (global.size() > 1) shape[1] = count_of(columns);
  return shape;
}

bool ShardSpec::slices_rows() const { return !global.empty() && count_of(rows) < global[0]; }
bool ShardSpec::slices_columns() const { return global.size() > 1 && count_of(columns) < global[1]; }

ShardSpec ShardSpec::transposed() const {
  if (global.size() < 2) return *this;
  return {{global[1], global[0]}, columns, rows};
}

Tensor slice_shard(const Tensor& global, const ShardSpec& spec, MemoryPool& pool) {
  NIBBLE_CHECK(global.shape() == spec.global, "shape of a global tensor");
  if (spec.rows.size() == 1 && !spec.slices_columns()) return global.rows(spec.rows[0].begin, spec.rows[0].end);
  Tensor shard = Tensor::empty(pool, spec.shape(), global.dtype(), "shard of a weight");
  each_block(shard, global, spec, [&](const Tensor& to, int64_t at, const Tensor& from, const Range& columns) {
    copy_columns(from, columns.begin, to, at, columns.size(), pool);
  });
  return shard;
}

void write_shard(const Tensor& shard, const ShardSpec& spec, Tensor& global) {
  NIBBLE_CHECK(global.shape() == spec.global && shard.shape() == spec.shape() && shard.dtype() == global.dtype(),
               "shape of a shard");
  MemoryPool pool;
  each_block(shard, global, spec, [&](const Tensor& from, int64_t at, const Tensor& to, const Range& columns) {
    copy_columns(from, at, to, columns.begin, columns.size(), pool);
  });
}

}  // namespace nibble
