#include "nibble/core/train/evaluate.h"

#include <array>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

std::optional<Evaluation> evaluate(const LossSum& loss_sum, int64_t count,
                                   const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                                   RankContext& rank, const BeforeBatch& before, const std::function<void()>& idle) {
  std::array<double, 3> sums{};  // loss, label tokens, tokens
  const StepContext context{rank, compute_dtype, false, 0, {}};
  for (int64_t i = 0; i < count; ++i) {
    if (!before(i, count)) return std::nullopt;
    const Batch batch = batch_at(i);
    if (batch.ids) sums[2] += static_cast<double>(batch.ids.numel());
    if (batch.label_tokens == 0) {
      if (idle) idle();
      continue;
    }
    sums[0] += loss_sum(batch, context);
    sums[1] += static_cast<double>(batch.label_tokens);
  }
  Tensor summed = Tensor::from<double>(rank.pool.host(), {3}, sums);
  rank.comm.all_reduce_sum("evaluation", summed);
  const double* total = summed.data<double>();
  Evaluation result;
  result.label_tokens = static_cast<int64_t>(total[1]);
  result.tokens = static_cast<int64_t>(total[2]);
  if (result.label_tokens == 0) throw InputError("evaluation data", "no token has a label", "check its labels");
  result.loss = total[0] / total[1];
  result.perplexity = std::exp(result.loss);
  if (!std::isfinite(result.loss)) {
    throw NumericError("evaluation", "the loss is not finite", "lower optimizer.lr, or look at the evaluation data");
  }
  return result;
}

Evaluation evaluate(Decoder& model, int64_t count, const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                    RankContext& rank) {
  const LossSum run = [&](const Batch& batch, const StepContext& step) { return model.loss_sum(batch, step); };
  return *evaluate(run, count, batch_at, compute_dtype, rank, [](int64_t, int64_t) { return true; });
}

}  // namespace nibble
