#include "nibble/core/objectives/distillation.h"

#include <memory>

#include "nibble/core/base/error.h"
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

}  // namespace

LogitLoss Distillation::logit_loss(const Batch& batch, const StepContext& step) const {
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
  loss.of = [=, &pool](int64_t first, Tensor& logits, float softcap, const float* scale) {
    const int64_t count = logits.dim(0);
    const std::span<const int32_t> picked(rows.data() + first, static_cast<size_t>(count));
    const Tensor x = seen->pass.pick(seen->stream, picked);
    double sum = 0;
    seen->pass.logits(x, [&](int64_t row, const Tensor& teacher) {
      Tensor student = logits.rows(row, row + teacher.dim(0));
      Tensor losses = Tensor::empty(pool, {teacher.dim(0)}, DType::f32, "losses"), gradient;
      if (scale) gradient = student;
      ops::divergence(student, teacher, softcap, temperature, beta, scale ? *scale : 1, losses, gradient);
      sum += ops::sum(losses);
    });
    return sum;
  };
  return loss;
}

double Distillation::loss_sum(const Batch&, const LabelLogProbs&, const LossCounts&, std::span<float>) const {
  NIBBLE_CHECK(false, "distillation is a loss of logits");
  return 0;
}

}  // namespace nibble
