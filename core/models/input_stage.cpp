#include "nibble/core/models/input_stage.h"

#include <algorithm>
#include <utility>

#include "nibble/core/io/checkpoint_dir.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"

namespace nibble {

namespace {

Tensor narrowed(const Tensor& x, const StepContext& step) {
  if (x.dtype() == step.compute_dtype) return x;
  Tensor y = Tensor::empty(step.pool(), x.shape(), step.compute_dtype, "embeddings");
  ops::cast(x, y);
  return y;
}

// Places in `ids` of those in `vocabulary`, and those ids counted from its first.
struct OwnIds {
  Tensor places, ids;  // [n] i32
};

OwnIds own_ids(const Tensor& ids, const Range& vocabulary, MemoryPool& pool) {
  std::vector<int32_t> places, own;
  const std::span<const int32_t> all = ids.span<const int32_t>();
  for (size_t t = 0; t < all.size(); ++t) {
    if (all[t] < vocabulary.begin || all[t] >= vocabulary.end) continue;
    places.push_back(static_cast<int32_t>(t));
    own.push_back(static_cast<int32_t>(all[t] - vocabulary.begin));
  }
  const Shape shape = {static_cast<int64_t>(own.size())};
  return {Tensor::from<int32_t>(pool.host(), shape, places), Tensor::from<int32_t>(pool.host(), shape, own)};
}

}  // namespace

void InputStage::embed_own(const Tensor& ids, const StepContext& step, Tensor& x) const {
  const OwnIds own = own_ids(ids, vocabulary, step.pool());
  Tensor rows = Tensor::empty(step.pool(), {own.ids.numel(), x.dim(1)}, DType::f32, "embeddings");
  embedding.forward(own.ids, 0, embedding_scale, rows, step);
  x.zero();
  ops::scatter_add_rows(rows, own.places, x);
}

void InputStage::embed_own_backward(const Tensor& ids, const StepContext& step, const Tensor& gradient) {
  const OwnIds own = own_ids(ids, vocabulary, step.pool());
  Tensor rows = Tensor::empty(step.pool(), {own.ids.numel(), gradient.dim(1)}, DType::f32, "gradient of embeddings");
  ops::gather_rows(gradient, own.places, rows);
  embedding.backward(own.ids, 0, embedding_scale, rows, step);
}

bool InputStage::has_trainable() const {
  return embedding.has_trainable() || (positions && positions->has_trainable()) ||
         (project && project->has_trainable()) || (norm && norm->has_trainable());
}

Tensor InputStage::forward(const Tensor& ids, const Tensor& at, const StepContext& step, InputSaved* saved,
                           BlockHooks& hooks, int64_t piece) {
  const int64_t tokens = ids.dim(0);
  const auto make = [&](int64_t width, const std::string& what) {
    return Tensor::empty(step.pool(), {tokens, width}, DType::f32, what);
  };
  const auto leave = [&] {
    if (piece > 0) release_pages(embedding.table().value);
  };
  Tensor x = make(embedding.table().value.dim(1), "embeddings");
  if (vocabulary.size() > 0) {
    embed_own(ids, step, x);
    leave();
    hooks.sum_parts("sum embeddings", x);
  } else {
    for (int64_t t = 0, end; t < tokens; t = end) {
      end = piece > 0 ? std::min(tokens, t + piece) : tokens;
      Tensor rows = x.rows(t, end);
      embedding.forward(ids.rows(t, end), 0, embedding_scale, rows, step);
      leave();
    }
  }
  if (project) {
    const Tensor in = narrowed(x, step);
    x = make(project->out_features(), "projected embeddings");
    project->forward(in, x, step, saved ? &saved->project : nullptr);
  }
  if (positions) {
    Tensor learned = make(x.dim(1), "positions");
    positions->forward(at, position_offset, 1.0f, learned, step);
    ops::add(learned, x);
  }
  if (norm) {
    Tensor normed = make(x.dim(1), "norm of the embeddings");
    norm->forward(x, normed, step, saved ? &saved->norm : nullptr);
    x = normed;
  }
  return x;
}

void InputStage::backward(const Tensor& ids, const Tensor& at, const StepContext& step, InputSaved&& saved,
                          Tensor gradient) {
  const auto make = [&](int64_t width) {
    return Tensor::zeros(step.pool(), {ids.dim(0), width}, DType::f32, "gradient of embeddings");
  };
  if (norm) {
    Tensor dx = make(gradient.dim(1));
    norm->backward(gradient, step, std::move(saved.norm), dx);
    gradient = dx;
  }
  if (positions) positions->backward(at, position_offset, 1.0f, gradient, step);
  if (project) {
    Tensor dx = make(project->in_features());
    project->backward(narrowed(gradient, step), step, std::move(saved.project),
                      embedding.has_trainable() ? &dx : nullptr, false);
    gradient = dx;
  }
  if (!embedding.has_trainable()) return;
  if (vocabulary.size() > 0) return embed_own_backward(ids, step, gradient);
  embedding.backward(ids, 0, embedding_scale, gradient, step);
}

void InputStage::visit(const ParameterVisitor& visitor) {
  embedding.visit(visitor);
  if (project) project->visit(visitor);
  if (positions) positions->visit(visitor);
  if (norm) norm->visit(visitor);
}

}  // namespace nibble
