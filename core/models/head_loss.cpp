#include "nibble/core/models/head_loss.h"

#include <algorithm>

#include "nibble/core/ops/cross_entropy.h"
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
  Tensor picked = Tensor::empty(pool, {static_cast<int64_t>(rows.size())}, x.dtype(), "labels");
  const std::span<const T> from = x.span<const T>();
  std::transform(rows.begin(), rows.end(), picked.data<T>(),
                 [&](int32_t row) { return from[static_cast<size_t>(row)]; });
  return picked;
}

double sum(const Tensor& losses) {
  double total = 0;
  for (float loss : losses.span<const float>()) total += static_cast<double>(loss);
  return total;
}

}  // namespace

int64_t DecoderHead::chunk_rows() const {
  return std::max(kMinRows, kLogitBytes / (linear.out_features() * int64_t{sizeof(float)}));
}

void DecoderHead::logits(const Tensor& hidden, const StepContext& step,
                         const std::function<void(int64_t row, const Tensor& logits)>& sink) {
  const int64_t rows = hidden.dim(0), width = hidden.dim(1);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows()) {
    const int64_t end = std::min(rows, begin + chunk_rows());
    Tensor normed = Tensor::empty(step.pool(), {end - begin, width}, step.compute_dtype, "final norm");
    norm.forward(hidden.rows(begin, end), normed, step, nullptr);
    Tensor chunk = Tensor::empty(step.pool(), {end - begin, linear.out_features()}, DType::f32, "logits");
    linear.forward(normed, chunk, step, nullptr);
    if (softcap > 0) ops::softcap(chunk, softcap);
    sink(begin, chunk);
  }
}

double DecoderHead::loss_sum(const Tensor& hidden, const Batch& batch, const StepContext& step, bool gradients,
                             float gradient_scale, Tensor* hidden_gradient) {
  MemoryPool& pool = step.pool();
  const int64_t width = hidden.dim(1), vocabulary = linear.out_features();
  const std::vector<int32_t> all = labelled_rows(batch, vocabulary);
  const bool below = hidden_gradient || norm.has_trainable();
  double total = 0;
  for (size_t begin = 0; begin < all.size(); begin += static_cast<size_t>(chunk_rows())) {
    const size_t count = std::min(all.size() - begin, static_cast<size_t>(chunk_rows()));
    const std::span<const int32_t> picked(all.data() + begin, count);
    const int64_t n = static_cast<int64_t>(count);
    const Tensor rows = Tensor::from<int32_t>(pool, {n}, picked);
    StepContext chunk_step = step;
    if (step.row_keys) chunk_step.row_keys = pick<int64_t>(step.row_keys, picked, pool);

    Tensor x = Tensor::empty(pool, {n, width}, DType::f32, "head input");
    ops::gather_rows(hidden, rows, x);
    Tensor normed = Tensor::empty(pool, {n, width}, step.compute_dtype, "final norm");
    NormSaved norm_saved;
    norm.forward(x, normed, chunk_step, gradients ? &norm_saved : nullptr);
    Tensor chunk = Tensor::empty(pool, {n, vocabulary}, DType::f32, "logits");
    LinearSaved linear_saved;
    linear.forward(normed, chunk, chunk_step, gradients ? &linear_saved : nullptr);

    Tensor losses = Tensor::empty(pool, {n}, DType::f32, "losses");
    Tensor dlogits;
    if (gradients && step.compute_dtype == DType::f32) dlogits = chunk;
    if (gradients && step.compute_dtype != DType::f32)
      dlogits = Tensor::empty(pool, chunk.shape(), step.compute_dtype, "gradient of logits");
    ops::cross_entropy(chunk, pick<int32_t>(batch.targets, picked, pool), softcap, gradient_scale, losses, dlogits);
    total += sum(losses);
    if (!gradients) continue;

    chunk = {};
    Tensor dnormed = below ? Tensor::empty(pool, {n, width}, DType::f32, "gradient of the head input") : Tensor();
    linear.backward(dlogits, chunk_step, std::move(linear_saved), below ? &dnormed : nullptr, false);
    if (!below) continue;
    Tensor dx = Tensor::zeros(pool, {n, width}, DType::f32, "gradient of the final norm");
    norm.backward(dnormed, chunk_step, std::move(norm_saved), dx);
    if (hidden_gradient) ops::scatter_add_rows(dx, rows, *hidden_gradient);
  }
  return total;
}

}  // namespace nibble
