#include "nibble/core/models/head_loss.h"

#include <algorithm>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/softcap.h"

namespace nibble {

namespace {

constexpr int64_t kLogitBytes = int64_t{32} << 20;
constexpr int64_t kMinRows = 128;

std::vector<int32_t> labelled_rows(const Batch& batch, int64_t vocabulary) {
  std::vector<int32_t> rows;
  const std::span<const int32_t> targets = batch.targets.span<const int32_t>();
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == kIgnoreLabel) continue;
    if (targets[t] < 0 || targets[t] >= vocabulary) {
      throw InputError("labels",
                       "id " + std::to_string(targets[t]) + " after token " + std::to_string(t) +
                           " of the batch is outside the vocabulary of " + std::to_string(vocabulary),
                       "use the model's own tokenizer");
    }
    rows.push_back(static_cast<int32_t>(t));
  }
  return rows;
}

// elements `rows` of x
template <typename T>
Tensor pick(const Tensor& x, std::span<const int32_t> rows, MemoryPool& pool) {
  Tensor picked = Tensor::empty(pool.host(), {static_cast<int64_t>(rows.size())}, x.dtype(), "labels");
  const std::span<const T> from = x.span<const T>();
  std::transform(rows.begin(), rows.end(), picked.data<T>(),
                 [&](int32_t row) { return from[static_cast<size_t>(row)]; });
  return picked;
}

// targets counted from the first row of `vocabulary`; those outside it are -1.
Tensor own_targets(const Tensor& targets, const Range& vocabulary, MemoryPool& pool) {
  Tensor own = Tensor::empty(pool.host(), targets.shape(), DType::i32, "labels");
  const std::span<const int32_t> from = targets.span<const int32_t>();
  std::transform(from.begin(), from.end(), own.data<int32_t>(), [&](int32_t id) {
    return id < vocabulary.begin || id >= vocabulary.end ? -1 : static_cast<int32_t>(id - vocabulary.begin);
  });
  return own;
}

}  // namespace

int64_t head_chunk_rows(int64_t vocabulary, int64_t width, bool trained) {
  const int64_t rows = kLogitBytes / (vocabulary * int64_t{sizeof(float)});
  return std::max({kMinRows, rows, trained ? width / 2 : 0});
}

int64_t DecoderHead::chunk_rows() {
  const Parameter* weight = linear.weight().parameter();
  return head_chunk_rows(std::max(whole_vocabulary, linear.out_features()), linear.in_features(),
                         weight != nullptr && weight->trainable);
}

Tensor DecoderHead::forward(const Tensor& hidden, const StepContext& step, Saved* saved) {
  const auto make = [&](int64_t width, DType dtype, const std::string& what) {
    return Tensor::empty(step.pool(), {hidden.dim(0), width}, dtype, what);
  };
  Tensor x = make(hidden.dim(1), step.compute_dtype, "final norm");
  if (norm) {
    norm->forward(hidden, x, step, saved ? &saved->norm : nullptr);
  } else {
    ops::cast(hidden, x);
  }
  if (project) {
    Tensor projected = make(project->out_features(), step.compute_dtype, "projected head input");
    project->forward(x, projected, step, saved ? &saved->project : nullptr);
    x = projected;
  }
  Tensor logits = make(linear.out_features(), DType::f32, "logits");
  linear.forward(x, logits, step, saved ? &saved->linear : nullptr);
  if (scale != 1) ops::scale(logits, scale);
  return logits;
}

Tensor DecoderHead::backward(Tensor& dlogits, const StepContext& step, Saved&& saved, bool wanted, BlockHooks& hooks) {
  const auto make = [&](int64_t width, DType dtype) {
    return Tensor::zeros(step.pool(), {dlogits.dim(0), width}, dtype, "gradient of the head input");
  };
  if (scale != 1) ops::scale(dlogits, scale);
  const bool project_trains = project && project->has_trainable(), norm_trains = norm && norm->has_trainable();
  const bool below_project = wanted || norm_trains, below_linear = below_project || project_trains;
  Tensor dx;
  const bool narrow = project && vocabulary.size() == 0;
  if (below_linear) dx = make(linear.in_features(), narrow ? step.compute_dtype : DType::f32);
  linear.backward(dlogits, step, std::move(saved.linear), below_linear ? &dx : nullptr, false);
  if (below_linear && vocabulary.size() > 0) hooks.sum_parts("sum head gradients", dx);
  if (project && below_linear) {
    Tensor above = dx;
    if (!narrow && step.compute_dtype != DType::f32) {
      above = make(dx.dim(1), step.compute_dtype);
      ops::cast(dx, above);
    }
    dx = below_project ? make(project->in_features(), DType::f32) : Tensor();
    project->backward(above, step, std::move(saved.project), below_project ? &dx : nullptr, false);
  }
  if (!norm || !below_project) return dx;
  Tensor dhidden = make(dx.dim(1), DType::f32);
  norm->backward(dx, step, std::move(saved.norm), dhidden);
  return dhidden;
}

void DecoderHead::logits(const Tensor& hidden, const StepContext& step, BlockHooks& hooks,
                         const std::function<void(int64_t row, const Tensor& logits)>& sink) {
  const int64_t rows = hidden.dim(0);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows()) {
    Tensor chunk = forward(hidden.rows(begin, std::min(rows, begin + chunk_rows())), step, nullptr);
    if (vocabulary.size() > 0) {
      NIBBLE_CHECK(hooks.parts() > 1, "a part of the vocabulary has hooks to the others");
      // Each rank fills its own columns, the sum is all of them.
      Tensor whole = Tensor::zeros(step.pool(), {chunk.dim(0), whole_vocabulary}, DType::f32, "logits");
      ops::copy_columns_in(chunk, vocabulary.begin, whole);
      hooks.sum_parts("gather logits", whole);
      chunk = whole;
    }
    if (softcap > 0) ops::softcap(chunk, softcap);
    sink(begin, chunk);
  }
}

void DecoderHead::loss_of_part(const Tensor& logits, const Tensor& targets, float gradient_scale,
                               const StepContext& step, Tensor& losses, Tensor& dlogits, BlockHooks& hooks) const {
  const int64_t n = logits.dim(0), parts = hooks.parts();
  const Tensor own = own_targets(targets, vocabulary, step.pool());
  // Each rank fills the rows of its own columns, the sum is all of them.
  Tensor statistics = Tensor::zeros(step.pool(), {parts * 3, n}, DType::f32, "statistics of logits");
  Tensor mine = statistics.rows(hooks.part() * 3, hooks.part() * 3 + 3);
  ops::cross_entropy_statistics(logits, own, softcap, mine);
  hooks.sum_parts("sum logits", statistics);

  Tensor row_max = Tensor::empty(step.pool(), {n}, DType::f32, "maxima of logits");
  Tensor row_sumexp = Tensor::empty(step.pool(), {n}, DType::f32, "sums of logits");
  ops::cross_entropy_merge(statistics, row_max, row_sumexp, losses);
  if (dlogits) ops::cross_entropy_backward(logits, own, row_max, row_sumexp, softcap, gradient_scale, dlogits);
}

double DecoderHead::loss_sum(const Tensor& hidden, const Batch& batch, const StepContext& step, bool gradients,
                             float gradient_scale, Tensor* hidden_gradient, BlockHooks& hooks) {
  MemoryPool& pool = step.pool();
  const MemoryPool::Use use(pool, MemoryUse::logits);
  const int64_t width = hidden.dim(1);
  const bool in_parts = vocabulary.size() > 0;
  const std::vector<int32_t> all = labelled_rows(batch, in_parts ? whole_vocabulary : linear.out_features());
  double total = 0;
  for (size_t begin = 0; begin < all.size(); begin += static_cast<size_t>(chunk_rows())) {
    const size_t count = std::min(all.size() - begin, static_cast<size_t>(chunk_rows()));
    const std::span<const int32_t> picked(all.data() + begin, count);
    const int64_t n = static_cast<int64_t>(count);
    const Tensor rows = Tensor::from<int32_t>(pool.host(), {n}, picked);
    StepContext chunk_step = step;
    if (step.row_keys) chunk_step.row_keys = pick<int64_t>(step.row_keys, picked, pool);

    Tensor x = Tensor::empty(pool, {n, width}, DType::f32, "head input");
    ops::gather_rows(hidden, rows, x);
    Saved saved;
    Tensor chunk = forward(x, chunk_step, gradients ? &saved : nullptr);
    Tensor losses = Tensor::empty(pool, {n}, DType::f32, "losses");
    Tensor dlogits;
    if (gradients && step.compute_dtype == DType::f32) dlogits = chunk;
    if (gradients && step.compute_dtype != DType::f32)
      dlogits = Tensor::empty(pool, chunk.shape(), step.compute_dtype, "gradient of logits");
    const Tensor targets = pick<int32_t>(batch.targets, picked, pool);
    if (in_parts) {
      loss_of_part(chunk, targets, gradient_scale, step, losses, dlogits, hooks);
    } else {
      ops::cross_entropy(chunk, targets, softcap, gradient_scale, losses, dlogits);
    }
    total += ops::sum(losses);
    if (!gradients) continue;

    chunk = {};
    const Tensor dx = backward(dlogits, chunk_step, std::move(saved), hidden_gradient != nullptr, hooks);
    if (hidden_gradient) ops::scatter_add_rows(dx, rows, *hidden_gradient);
  }
  return total;
}

}  // namespace nibble
