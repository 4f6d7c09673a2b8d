#include <utility>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

DenseWeight::DenseWeight(std::shared_ptr<Parameter> weight, bool transposed)
    : weight_(std::move(weight)), transposed_(transposed) {
  NIBBLE_CHECK(weight_ != nullptr && weight_->value.rank() == 2, "a dense weight is a matrix");
}

int64_t DenseWeight::out_features() const { return weight_->value.dim(transposed_ ? 1 : 0); }
int64_t DenseWeight::in_features() const { return weight_->value.dim(transposed_ ? 0 : 1); }

void DenseWeight::forward(const Tensor& x, Tensor& y, bool accumulate, const ops::LowRankEpilogue* epilogue) const {
  (transposed_ ? ops::matmul_nn : ops::matmul_nt)(x, weight_->value, y, accumulate, 1.0f, epilogue);
}

void DenseWeight::backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                                 const ops::LowRankEpilogue* epilogue) const {
  (transposed_ ? ops::matmul_nt : ops::matmul_nn)(dy, weight_->value, dx, accumulate, 1.0f, epilogue);
}

void DenseWeight::backward_weight(const Tensor& dy, const Tensor& x) {
  if (!weight_->trainable) return;
  if (transposed_) {
    ops::matmul_tn(x, dy, weight_->gradient, true);
  } else {
    ops::matmul_tn(dy, x, weight_->gradient, true);
  }
}

Tensor DenseWeight::dequantize(int64_t begin, int64_t end, MemoryPool& pool) const {
  NIBBLE_CHECK(0 <= begin && begin <= end && end <= out_features(), "rows of " + weight_->name);
  const Tensor& value = weight_->value;
  Tensor rows = Tensor::empty(pool, {end - begin, in_features()}, DType::f32, weight_->name);
  if (!transposed_) {
    ops::cast(value.rows(begin, end), rows);
  } else {
    Tensor stored = Tensor::empty(pool, {in_features(), end - begin}, value.dtype(), weight_->name);
    Tensor columns = Tensor::empty(pool, stored.shape(), DType::f32, weight_->name);
    ops::copy_columns_out(value, begin, stored);
    ops::cast(stored, columns);
    ops::transpose(columns, rows);
  }
  return rows;
}

std::unique_ptr<LinearWeight> DenseWeight::shard(const ShardSpec& spec, MemoryPool& pool) const {
  auto own = std::make_shared<Parameter>(*weight_);
  own->shard = transposed_ ? spec.transposed() : spec;
  own->value = slice_shard(weight_->value, own->shard, pool);
  // What is not mapped shall not keep the whole alive.
  if (own->value.writable() && own->value.storage() == weight_->value.storage()) own->value = own->value.clone(pool);
  return std::make_unique<DenseWeight>(std::move(own), transposed_);
}

std::vector<NamedTensor> DenseWeight::parts() const { return {{weight_->name, weight_->value}}; }

}  // namespace nibble
