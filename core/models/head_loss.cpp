#include "nibble/core/models/head_loss.h"

#include <algorithm>

#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/softcap.h"

namespace nibble {

using ops::kTokenStatistics;

namespace {

constexpr int64_t kLogitBytes = int64_t{32} << 20, kLogitBytesOfThread = int64_t{1} << 20;
constexpr int64_t kMinRows = 128;

/// Rows of a batch that have a label, and those of them whose weight is 0.
struct LabelledRows {
  std::vector<int32_t> weighted, others;
};

LabelledRows labelled_rows(const Batch& batch, int64_t vocabulary, const Tensor& weights) {
  LabelledRows rows;
  const std::span<const int32_t> targets = batch.targets.span<const int32_t>();
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == kIgnoreLabel) continue;
    if (targets[t] < 0 || targets[t] >= vocabulary) {
      throw InputError("labels",
                       "id " + std::to_string(targets[t]) + " after token " + std::to_string(t) +
                           " of the batch is outside the vocabulary of " + std::to_string(vocabulary),
                       "use the model's own tokenizer");
    }
    const bool counts = !weights || weights.data<const float>()[t] != 0;
    (counts ? rows.weighted : rows.others).push_back(static_cast<int32_t>(t));
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

// ops::cross_entropy of logits of which other columns may be elsewhere. token_statistics (may be undefined): see
// ops::cross_entropy_merge.
void cross_entropy_of(const LayerSharding* sharding, const Tensor& logits, const Tensor& targets, float softcap,
                      float scale, const Tensor& weights, Tensor& losses, Tensor& token_statistics, Tensor& dlogits,
                      const StepContext& step) {
  if (!sharding && !token_statistics)
    return ops::cross_entropy(logits, targets, softcap, scale, losses, dlogits, weights);
  Tensor row_max = Tensor::empty(step.pool(), losses.shape(), DType::f32, "maxima of logits");
  Tensor row_sumexp = Tensor::empty(step.pool(), losses.shape(), DType::f32, "sums of logits");
  Tensor own = targets;
  if (sharding) {
    own = sharding->cross_entropy(logits, targets, softcap, row_max, row_sumexp, losses, token_statistics, step);
  } else {
    Tensor statistics = Tensor::empty(step.pool(), {7, logits.dim(0)}, DType::f32, "statistics of logits");
    ops::cross_entropy_statistics(logits, targets, softcap, statistics);
    ops::cross_entropy_merge(statistics, row_max, row_sumexp, losses, token_statistics);
  }
  if (dlogits) ops::cross_entropy_backward(logits, own, row_max, row_sumexp, softcap, scale, dlogits, weights);
}

// to[rows[i]] = from[i]
void put_rows(const Tensor& from, std::span<const int32_t> rows, float factor, float* to, MemoryPool& host) {
  if (!from.device().has_bytes()) return;
  const Tensor read = from.to(host);
  for (size_t i = 0; i < rows.size(); ++i) to[rows[i]] += factor * read.data<const float>()[i];
}

}  // namespace

int64_t head_chunk_rows(int64_t rows, int64_t vocabulary, int64_t width, bool trained) {
  const int64_t about =
      std::max({kMinRows, kLogitBytes / (vocabulary * int64_t{sizeof(float)}), trained ? width / 2 : 0});
  const int64_t chunks = std::max(int64_t{1}, (rows - about / 8 + about - 1) / about);
  return std::max(int64_t{1}, (rows + chunks - 1) / chunks);
}

int64_t head_chunks_at_once(int64_t chunk_rows, int64_t vocabulary, int64_t threads) {
  const int64_t bytes = chunk_rows * vocabulary * int64_t{sizeof(float)};
  return std::max(int64_t{1}, (threads * kLogitBytesOfThread + bytes / 2) / bytes);
}

bool DecoderHead::has_trainable() const {
  return (norm && norm->has_trainable()) || (project && project->has_trainable()) || linear.has_trainable();
}

int64_t DecoderHead::chunk_rows(int64_t rows) {
  const Parameter* weight = linear.weight().parameter();
  const bool trained = weight != nullptr && weight->trainable;
  return head_chunk_rows(rows, linear.global_out_features(), linear.in_features(), trained);
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

Tensor DecoderHead::backward(Tensor& dlogits, const StepContext& step, Saved&& saved, bool wanted,
                             const LayerSharding* sharding) {
  const auto make = [&](int64_t width, DType dtype) {
    return Tensor::zeros(step.pool(), {dlogits.dim(0), width}, dtype, "gradient of the head input");
  };
  if (scale != 1) ops::scale(dlogits, scale);
  const bool project_trains = project && project->has_trainable(), norm_trains = norm && norm->has_trainable();
  const bool below_project = wanted || norm_trains, below_linear = below_project || project_trains;
  Tensor dx;
  const bool narrow = project && !sharding;
  if (below_linear) dx = make(linear.in_features(), narrow ? step.compute_dtype : DType::f32);
  linear.backward(dlogits, step, std::move(saved.linear), below_linear ? &dx : nullptr, false);
  if (below_linear && sharding) sharding->all_reduce("sum head gradients", dx);
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

void DecoderHead::logits(const Tensor& hidden, const StepContext& step, const LayerSharding* sharding,
                         const std::function<void(int64_t row, const Tensor& logits)>& sink) {
  const int64_t rows = hidden.dim(0), most = chunk_rows(rows);
  for (int64_t begin = 0; begin < rows; begin += most) {
    Tensor chunk = forward(hidden.rows(begin, std::min(rows, begin + most)), step, nullptr);
    if (sharding) chunk = sharding->gather_logits(chunk, step);
    if (softcap > 0) ops::softcap(chunk, softcap);
    sink(begin, chunk);
  }
}

void DecoderHead::each_chunk(const Tensor& hidden, std::span<const int32_t> all, int64_t chunk, const StepContext& step,
                             const LayerSharding* sharding, const HeadGradient* gradient,
                             const std::function<void(std::span<const int32_t>, Tensor& logits, Tensor& dlogits)>& of) {
  MemoryPool& pool = step.pool();
  const MemoryPool::Use use(pool, MemoryUse::logits);
  for (size_t begin = 0; begin < all.size(); begin += static_cast<size_t>(chunk)) {
    const std::span<const int32_t> picked =
        all.subspan(begin, std::min(all.size() - begin, static_cast<size_t>(chunk)));
    const int64_t n = static_cast<int64_t>(picked.size());
    const Tensor rows = Tensor::from<int32_t>(pool.host(), {n}, picked);
    StepContext chunk_step = step;
    if (step.row_keys) chunk_step.row_keys = pick<int64_t>(step.row_keys, picked, pool);

    Tensor x = Tensor::empty(pool, {n, hidden.dim(1)}, DType::f32, "head input");
    ops::gather_rows(hidden, rows, x);
    Saved saved;
    Tensor logits = forward(x, chunk_step, gradient ? &saved : nullptr);
    Tensor dlogits;
    of(picked, logits, dlogits);
    if (!gradient) continue;
    logits = {};
    const Tensor dx = backward(dlogits, chunk_step, std::move(saved), gradient->hidden != nullptr, sharding);
    if (gradient->hidden) ops::scatter_add_rows(dx, rows, *gradient->hidden);
  }
}

double DecoderHead::loss_sum(const Tensor& hidden, const Batch& batch, const StepContext& step,
                             const LayerSharding* sharding, float temperature, const HeadGradient* gradient,
                             Tensor* log_probs) {
  MemoryPool& pool = step.pool();
  const float cap = softcap / temperature;  // c tanh(z / c) / t is (c/t) tanh((z/t) / (c/t))
  const Tensor all_weights = gradient ? gradient->weights : Tensor();
  const float gradient_scale = gradient ? gradient->scale : 1;
  const LabelledRows rows = labelled_rows(batch, linear.global_out_features(), all_weights);
  double total = 0;
  int64_t summed_rows = 0;  // whose losses are one sum, however many are computed at once
  const auto of = [&](std::span<const int32_t> picked, Tensor& chunk, Tensor& dlogits) {
    if (temperature != 1) ops::scale(chunk, 1 / temperature);
    Tensor losses = Tensor::empty(pool, {chunk.dim(0)}, DType::f32, "losses");
    if (gradient && step.compute_dtype == DType::f32) dlogits = chunk;
    if (gradient && step.compute_dtype != DType::f32)
      dlogits = Tensor::empty(pool, chunk.shape(), step.compute_dtype, "gradient of logits");
    const Tensor targets = pick<int32_t>(batch.targets, picked, pool);
    const Tensor weights = gradient && all_weights ? pick<float>(all_weights, picked, pool) : Tensor();
    Tensor token_statistics;
    if (log_probs && log_probs->rank() == 2) {
      token_statistics = Tensor::empty(pool, {kTokenStatistics, chunk.dim(0)}, DType::f32, "statistics of logits");
    }
    cross_entropy_of(sharding, chunk, targets, cap, gradient_scale, weights, losses, token_statistics, dlogits, step);
    for (int64_t begin = 0; begin < losses.dim(0); begin += summed_rows) {
      total += ops::sum(losses.rows(begin, std::min(losses.dim(0), begin + summed_rows)));
    }
    if (log_probs) put_rows(losses, picked, -1, log_probs->data<float>(), pool.host());
    for (int64_t i = 0; token_statistics && i < kTokenStatistics; ++i) {
      const bool sum = static_cast<ops::TokenStatistic>(i) == ops::TokenStatistic::mean_logit;
      put_rows(token_statistics.rows(i, i + 1), picked, sum ? 1 / static_cast<float>(linear.global_out_features()) : 1,
               log_probs->data<float>() + (1 + i) * hidden.dim(0), pool.host());
    }
    if (gradient && temperature != 1) ops::scale(dlogits, 1 / temperature);
  };
  const auto pass = [&](const std::vector<int32_t>& of_rows) {
    summed_rows = chunk_rows(std::ssize(of_rows));
    // Parameters' gradients are sums over chunks, and all shards of a vocabulary have the same chunks.
    const bool any_size = !sharding && !(gradient && has_trainable());
    const int64_t chunks =
        any_size ? head_chunks_at_once(summed_rows, linear.global_out_features(), step.rank.threads) : 1;
    each_chunk(hidden, of_rows, chunks * summed_rows, step, sharding, gradient, of);
  };
  pass(rows.weighted);
  gradient = nullptr;
  if (log_probs) pass(rows.others);
  return total;
}

double DecoderHead::loss_sum(const Tensor& hidden, const LogitLoss& loss, const StepContext& step,
                             const LayerSharding* sharding, const HeadGradient* gradient) {
  if (sharding) {
    throw UsageError("the loss needs all logits of a token, which parallel.tensor shards",
                     "use parallel.shard or parallel.pipeline", "parallel.tensor");
  }
  double total = 0;
  int64_t first = 0;
  const auto of = [&](std::span<const int32_t> picked, Tensor& chunk, Tensor& dlogits) {
    total += loss.of(first, chunk, softcap, gradient ? &gradient->scale : nullptr);
    first += std::ssize(picked);
    if (gradient) dlogits = chunk;
    if (gradient && step.compute_dtype != DType::f32) {
      dlogits = Tensor::empty(step.pool(), chunk.shape(), step.compute_dtype, "gradient of logits");
      ops::cast(chunk, dlogits);
    }
  };
  const int64_t rows = std::ssize(loss.rows), chunk = loss.at_once ? std::max(int64_t{1}, rows) : chunk_rows(rows);
  each_chunk(hidden, loss.rows, chunk, step, sharding, gradient, of);
  return total;
}

}  // namespace nibble
