#include <utility>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/int8/int8_error.h"

namespace nibble {

void LinearWeight::multiply(const Tensor& x, const ops::WeightView& w, bool transposed, Tensor& y, bool accumulate,
                            const ops::LowRankEpilogue* epilogue) const {
  constexpr int64_t kFewRows = 4;
  if (!int8_ || trainable() || x.dim(0) <= kFewRows || ops::int8_error(x, w, transposed) > ops::kInt8MostError) {
    return (transposed ? ops::matmul_nt : ops::matmul_nn)(x, w, y, accumulate, 1.0f, epilogue);
  }
  ops::Int8Rows rows(*int8_, x);
  ops::int8_round(x, rows);
  (transposed ? ops::int8_matmul_nt : ops::int8_matmul_nn)(rows, w, y, accumulate, epilogue);
}

DenseWeight::DenseWeight(std::shared_ptr<Parameter> weight, bool transposed, int64_t matrix)
    : weight_(std::move(weight)), transposed_(transposed), matrix_(matrix) {
  NIBBLE_CHECK(weight_ != nullptr, "a dense weight has a parameter");
  const Tensor& value = weight_->value;
  NIBBLE_CHECK(value.rank() == 2 ? matrix == 0 : value.rank() == 3 && 0 <= matrix && matrix < value.dim(0),
               "a dense weight is a matrix");
}

int64_t DenseWeight::out_features() const { return weight_->value.shape().end()[transposed_ ? -1 : -2]; }
int64_t DenseWeight::in_features() const { return weight_->value.shape().end()[transposed_ ? -2 : -1]; }

Tensor DenseWeight::own(const Tensor& matrices) const {
  if (matrices.rank() == 2) return matrices;
  return matrices.rows(matrix_, matrix_ + 1).reshape({matrices.dim(1), matrices.dim(2)});
}

void DenseWeight::forward(const Tensor& x, Tensor& y, bool accumulate, const ops::LowRankEpilogue* epilogue) const {
  multiply(x, own(weight_->value), !transposed_, y, accumulate, epilogue);
}

void DenseWeight::backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                                 const ops::LowRankEpilogue* epilogue) const {
  multiply(dy, own(weight_->value), transposed_, dx, accumulate, epilogue);
}

void DenseWeight::backward_weight(const Tensor& dy, const Tensor& x) {
  if (!weight_->trainable) return;
  Tensor gradient = own(weight_->gradient);
  if (transposed_) {
    ops::matmul_tn(x, dy, gradient, true);
  } else {
    ops::matmul_tn(dy, x, gradient, true);
  }
}

Tensor DenseWeight::dequantize(int64_t begin, int64_t end, MemoryPool& pool) const {
  NIBBLE_CHECK(0 <= begin && begin <= end && end <= out_features(), "rows of " + weight_->name);
  const Tensor value = own(weight_->value);
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
  NIBBLE_CHECK(weight_->value.rank() == 2, "a shard of a single matrix");
  auto own = std::make_shared<Parameter>(*weight_);
  own->shard = transposed_ ? spec.transposed() : spec;
  own->value = slice_shard(weight_->value, own->shard, pool);
  // What is not mapped shall not keep the whole alive.
  if (own->value.writable() && own->value.storage() == weight_->value.storage()) own->value = own->value.clone(pool);
  return std::make_unique<DenseWeight>(std::move(own), transposed_);
}

std::unique_ptr<LinearWeight> DenseWeight::matrices(Range which, MemoryPool& pool) const {
  auto own = std::make_shared<Parameter>(*weight_);
  own->shard = {weight_->value.shape(), {which}, all_of(weight_->value.dim(1))};
  own->value = slice_shard(weight_->value, own->shard, pool);
  if (own->value.writable()) own->value = own->value.clone(pool);
  return std::make_unique<DenseWeight>(std::move(own), transposed_);
}

std::vector<NamedTensor> DenseWeight::parts() const {
  if (!is_first()) return {};
  return {{weight_->name, weight_->value}};
}

}  // namespace nibble
