#include "nibble/adapters/tuners/token_rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/pick.h"

namespace nibble {

namespace {

Tensor indices(const std::vector<int32_t>& values, MemoryPool& pool) {
  return Tensor::from<int32_t>(pool.host(), {static_cast<int64_t>(values.size())}, values);
}

}  // namespace

std::string token_rows_name(const std::string& module) {
  return kPeftPrefix + module + ".token_adapter.trainable_tokens_delta";
}

std::vector<int32_t> checked_token_ids(std::span<const int64_t> ids, int64_t vocabulary) {
  std::set<int64_t> seen;
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocabulary) {
      throw UsageError("trainable_token_indices has " + std::to_string(id) + ", outside the vocabulary of " +
                           std::to_string(vocabulary),
                       "use ids of the model's tokenizer");
    }
    if (!seen.insert(id).second) {
      throw UsageError("trainable_token_indices has " + std::to_string(id) + " twice", "name each token once");
    }
  }
  return {ids.begin(), ids.end()};
}

TokenRowsEmbedding::TokenRowsEmbedding(TokenRows tokens) : tokens_(std::move(tokens)) {
  const auto& ids = tokens_.ids;
  if (!ids.empty()) row_of_.assign(static_cast<size_t>(*std::max_element(ids.begin(), ids.end())) + 1, -1);
  for (size_t k = 0; k < ids.size(); ++k) row_of_[static_cast<size_t>(ids[k])] = static_cast<int32_t>(k);
}

TokenRowsEmbedding::Hits TokenRowsEmbedding::find(const Tensor& ids, MemoryPool& pool) const {
  std::vector<int32_t> places, rows;
  const std::span<const int32_t> all = ids.span<const int32_t>();
  for (size_t t = 0; t < all.size(); ++t) {
    const auto id = static_cast<size_t>(all[t]);  // -1 is beyond all rows
    if (id >= row_of_.size() || row_of_[id] < 0) continue;
    places.push_back(static_cast<int32_t>(t));
    rows.push_back(row_of_[id]);
  }
  return {indices(places, pool), indices(rows, pool)};
}

void TokenRowsEmbedding::forward(const Tensor& ids, const Tensor&, Tensor& rows, const StepContext& step) {
  const Hits hits = find(ids, step.pool());
  if (hits.places.numel() == 0) return;
  Tensor part = Tensor::empty(step.pool(), {hits.places.numel(), rows.dim(1)}, DType::f32, "embeddings");
  ops::embedding_forward(hits.rows, tokens_.rows->value, 1.0f, part);
  ops::put_rows(part, hits.places, rows);
}

void TokenRowsEmbedding::backward(const Tensor&, const Tensor& summed, const Tensor&, const Tensor& gradient,
                                  const StepContext& step) {
  const Hits hits = find(summed, step.pool());
  if (hits.places.numel() == 0) return;
  Tensor part = Tensor::empty(step.pool(), {hits.places.numel(), gradient.dim(1)}, DType::f32, "embedding gradient");
  ops::gather_rows(gradient, hits.places, part);
  ops::embedding_backward(hits.rows, part, 1.0f, tokens_.rows->gradient);
}

Tensor TokenRowsHead::columns(MemoryPool& pool) const { return indices(tokens_.ids, pool); }

void TokenRowsHead::forward(const Tensor& x, const LinearWeight&, Tensor& y, const StepContext& step,
                            AdapterSaved*) const {
  Tensor part = Tensor::empty(step.pool(), {x.dim(0), tokens_.rows->value.dim(0)}, DType::f32, "logits");
  ops::matmul_nt(x, tokens_.rows->value, part);
  ops::put_columns(part, columns(step.pool()), y);
}

AdapterGradient TokenRowsHead::backward(const Tensor& dy, const LinearWeight&, const StepContext& step) const {
  MemoryPool& pool = step.pool();
  const Tensor listed = columns(pool);
  Tensor part = Tensor::empty(pool, {dy.dim(0), listed.numel()}, dy.dtype(), "gradient of logits");
  ops::take_columns(dy, listed, part);
  Tensor rest = dy;  // in place: nothing else asks for the columns in which the base has no part
  ops::put_columns(Tensor::zeros(pool, part.shape(), part.dtype(), "gradient of logits"), listed, rest);
  return {.base = rest, .tensors = {part}};
}

void TokenRowsHead::accumulate_gradients(const AdapterGradient& gradient, const Tensor&, const Tensor& x,
                                         const StepContext&, const AdapterSaved&) {
  ops::matmul_tn(gradient.tensors.at(0), x, tokens_.rows->gradient, true);
}

void TokenRowsHead::backward_input(const AdapterGradient& gradient, const Tensor&, const LinearWeight&,
                                   const StepContext&, Tensor& dx, bool accumulate) const {
  ops::matmul_nn(gradient.tensors.at(0), tokens_.rows->value, dx, accumulate);
}

void TokenRowsHead::visit(const ParameterVisitor& visitor) {
  if (!shared_) visitor(*tokens_.rows);
}

void TokenRowsHead::merge_rows(int64_t begin, Tensor& rows) const {
  const int64_t width = rows.dim(1);
  for (size_t k = 0; k < tokens_.ids.size(); ++k) {
    const int64_t row = tokens_.ids[k] - begin;
    if (row < 0 || row >= rows.dim(0)) continue;
    std::copy_n(tokens_.rows->value.data<const float>() + static_cast<int64_t>(k) * width, width,
                rows.data<float>() + row * width);
  }
}

}  // namespace nibble
