#include "nibble/core/models/layer_inputs.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

const float kHalfRoot = std::sqrt(0.5f);

// Ids of the table: what it does not have is row 0.
Tensor in_table(const Tensor& ids, int64_t rows, const StepContext& step) {
  const std::span<const int32_t> values = ids.span<const int32_t>();
  std::vector<int32_t> known(values.begin(), values.end());
  std::replace_if(
      known.begin(), known.end(), [&](int32_t id) { return id >= rows; }, 0);
  return Tensor::from<int32_t>(step.pool().host(), ids.shape(), known);
}

float root(int64_t size) { return std::sqrt(static_cast<float>(size)); }

}  // namespace

bool LayerInputs::has_trainable() const {
  return table.has_trainable() || projection.has_trainable() || norm.has_trainable();
}

std::vector<Tensor> LayerInputs::forward(const Tensor& ids, const Tensor& x, const StepContext& step,
                                         LayerInputsSaved* saved) {
  const int64_t tokens = x.dim(0), columns = projection.out_features(), size = columns / layers;
  const auto make = [&] { return Tensor::empty(step.pool(), {tokens, columns}, DType::f32, "layer inputs"); };
  Tensor projected = make(), all = make(), looked_up = make();
  projection.forward(in_compute_dtype(x, step), projected, step, saved ? &saved->projection : nullptr);
  ops::scale(projected, 1 / root(x.dim(1)));
  Tensor normed = all.reshape({tokens * layers, size});
  norm.forward(projected.reshape(normed.shape()), normed, step, saved ? &saved->norm : nullptr);
  table.forward(in_table(ids, rows(), step), 0, root(size), looked_up, step);
  ops::add(looked_up, all);
  ops::scale(all, kHalfRoot);
  const Tensor narrow = in_compute_dtype(all, step);
  std::vector<Tensor> result;
  for (int64_t l = 0; l < layers; ++l) {
    result.push_back(Tensor::empty(step.pool(), {tokens, size}, step.compute_dtype, "layer inputs"));
    ops::copy_columns_out(narrow, l * size, result.back());
  }
  return result;
}

void LayerInputs::backward(const Tensor& ids, const std::vector<Tensor>& gradients, const StepContext& step,
                           LayerInputsSaved&& saved, Tensor& dx) {
  const int64_t tokens = ids.dim(0), columns = projection.out_features(), size = columns / layers;
  Tensor narrow = Tensor::zeros(step.pool(), {tokens, columns}, step.compute_dtype, "layer input gradients");
  for (int64_t l = 0; l < layers; ++l) {
    const Tensor& gradient = gradients.at(static_cast<size_t>(l));
    if (gradient) ops::copy_columns_in(gradient, l * size, narrow);
  }
  Tensor all = in_dtype(narrow, DType::f32, step);
  ops::scale(all, kHalfRoot);
  if (table.has_trainable()) table.backward(in_table(ids, rows(), step), 0, root(size), all, step);
  Tensor dprojected = Tensor::zeros(step.pool(), {tokens * layers, size}, DType::f32, "norm gradient");
  norm.backward(all.reshape(dprojected.shape()), step, std::move(saved.norm), dprojected);
  ops::scale(dprojected, 1 / root(dx.dim(1)));
  Tensor from = Tensor::empty(step.pool(), dx.shape(), DType::f32, "layer input gradients");
  projection.backward(in_compute_dtype(dprojected.reshape({tokens, columns}), step), step, std::move(saved.projection),
                      &from, false);
  ops::add(from, dx);
}

void LayerInputs::visit(const ParameterVisitor& visitor) {
  table.visit(visitor);
  projection.visit(visitor);
  norm.visit(visitor);
}

}  // namespace nibble
