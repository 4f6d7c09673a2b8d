#include "nibble/core/objectives/distillation.h"

#include <memory>

#include "nibble/core/base/error.h"
#include "nibble/core/objectives/answers.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

/// What the teacher says of a batch: its residual stream, from which its head makes logits as they are asked for.
struct TeacherPass {
  TeacherPass(Decoder& teacher, const Batch& batch, const StepContext& step)
      : pass(teacher, batch, step, false), stream(pass.forward({})) {}
  DecoderPass pass;
  Tensor stream;
};

// values: [T]
std::vector<SampleFacts> facts_of(const Batch& batch, const std::vector<float>& values) {
  std::vector<SampleFacts> found;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    const double tokens = answer_tokens(batch, d);
    if (tokens > 0) found.push_back({sample_number(batch, d), {tokens, answer_sum(batch, d, values)}});
  }
  return found;
}

}  // namespace

LogitLoss Distillation::logit_loss(const Batch& batch, const StepContext& step, const Tell& facts) const {
  NIBBLE_CHECK(teacher_ != nullptr, "the rank with the head has the teacher");
  LogitLoss loss;
  const std::span<const int32_t> targets = batch.targets.span<const int32_t>();
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] != kIgnoreLabel) loss.rows.push_back(static_cast<int32_t>(t));
  }
  const StepContext frozen{step.rank, step.compute_dtype, false, 0, {}};
  const auto seen = std::make_shared<TeacherPass>(*teacher_, batch, frozen);
  const auto temperature = static_cast<float>(options_.temperature), beta = static_cast<float>(options_.beta);
  const std::vector<int32_t> rows = loss.rows;
  MemoryPool& pool = step.pool();
  const auto entropies = std::make_shared<std::vector<float>>(targets.size());
  loss.of = [=, &pool, &batch](int64_t first, Tensor& logits, float softcap, const float* scale) {
    const int64_t count = logits.dim(0);
    const std::span<const int32_t> picked(rows.data() + first, static_cast<size_t>(count));
    const Tensor x = seen->pass.pick(seen->stream, picked);
    double sum = 0;
    seen->pass.logits(x, [&](int64_t row, const Tensor& teacher) {
      Tensor student = logits.rows(row, row + teacher.dim(0));
      Tensor losses = Tensor::empty(pool, {teacher.dim(0)}, DType::f32, "losses"), gradient;
      Tensor entropy = Tensor::empty(pool, losses.shape(), DType::f32, "entropies");
      if (scale) gradient = student;
      ops::divergence(student, teacher, softcap, temperature, beta, scale ? *scale : 1, losses, entropy, gradient);
      sum += ops::sum(losses);
      if (!entropy.device().has_bytes()) return;
      const Tensor read = entropy.to(pool.host());
      for (int64_t i = 0; i < read.numel(); ++i) {
        (*entropies)[static_cast<size_t>(picked[static_cast<size_t>(row + i)])] = read.data<const float>()[i];
      }
    });
    if (first + count == std::ssize(rows)) facts(facts_of(batch, *entropies));
    return sum;
  };
  return loss;
}

double Distillation::loss_sum(const Batch&, const LabelLogProbs&, const LossCounts&, std::span<float>) const {
  NIBBLE_CHECK(false, "distillation is a loss of logits");
  return 0;
}

Metrics Distillation::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  return {{"entropy", ratio_of(facts, 1, 0)}};
}

}  // namespace nibble
