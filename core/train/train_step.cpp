#include "nibble/core/train/train_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/base/trace.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/data/batches.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

[[noreturn]] void refuse_nonfinite(const std::string& place, const std::string& what, int64_t step) {
  throw NumericError(place, what + " in step " + std::to_string(step),
                     "lower optimizer.lr, set train.max_grad_norm, or look at the data of this step");
}

double gradient_norm(const std::vector<Parameter*>& parameters, int64_t step) {
  double squares = 0;
  for (const Parameter* parameter : parameters) {
    const double sum = ops::sum_of_squares(parameter->gradient);
    if (!std::isfinite(sum)) {
      const int64_t at = ops::first_nonfinite(parameter->gradient);
      refuse_nonfinite(parameter->name, "element " + std::to_string(at) + " of the gradient is not finite", step);
    }
    squares += sum;
  }
  return std::sqrt(squares);
}

}  // namespace

StepResult train_step(const LossAndGradients& loss_and_gradients, std::span<const Batch> microbatches,
                      Optimizer& optimizer, const StepOptions& options, RankContext& rank) {
  NIBBLE_CHECK(rank.comm.size() == 1, "gradients are not yet summed over ranks");
  std::array<double, 2> counts{};
  for (const Batch& batch : microbatches) {
    counts[0] += static_cast<double>(batch.label_tokens);
    counts[1] += static_cast<double>(batch.ids.numel());
  }
  Tensor counted = Tensor::from<double>(rank.pool, {2}, counts);
  rank.comm.all_reduce_sum("label tokens", counted);

  StepResult result;
  result.label_tokens = static_cast<int64_t>(counted.data<double>()[0]);
  result.tokens = static_cast<int64_t>(counted.data<double>()[1]);
  if (result.label_tokens == 0) {
    result.updated = false;
    return result;
  }
  const double scale = 1.0 / static_cast<double>(result.label_tokens);
  const double loss_sum = sum_gradients(
      options.gradient_sum, optimizer.parameters(), static_cast<int64_t>(microbatches.size()),
      [&](int64_t i) {
        const Batch& batch = microbatches[static_cast<size_t>(i)];
        if (batch.label_tokens == 0) return 0.0;
        StepContext context{rank, options.compute_dtype, true, static_cast<uint64_t>(options.step), batch.row_keys};
        return loss_and_gradients(batch, context, static_cast<float>(scale));
      },
      rank.pool);
  result.loss = loss_sum * scale;
  const TraceSpan span(options.trace, Phase::optimizer, "norm and update");
  result.grad_norm = gradient_norm(optimizer.parameters(), options.step);
  if (!std::isfinite(result.loss)) refuse_nonfinite("loss", "it is not finite", options.step);

  double clip = 1.0;
  if (options.max_grad_norm > 0) clip = std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6));
  optimizer.step(options.lr, clip);
  return result;
}

StepResult train_step(Decoder& model, std::span<const Batch> microbatches, Optimizer& optimizer,
                      const StepOptions& options, RankContext& rank) {
  const LossAndGradients run = [&](const Batch& batch, const StepContext& step, float gradient_scale) {
    return model.loss_sum_and_gradients(batch, step, gradient_scale);
  };
  return train_step(run, microbatches, optimizer, options, rank);
}

StepResult train_step(Decoder& model, const Batches& batches, Optimizer& optimizer, const StepOptions& options,
                      RankContext& rank) {
  std::vector<Batch> microbatches;
  const int64_t count = batches.info(options.step).microbatches;
  for (int64_t m = 0; m < count; ++m) microbatches.push_back(batches.at(options.step, m, rank.pool));
  return train_step(model, microbatches, optimizer, options, rank);
}

std::vector<Parameter*> trainable_parameters(Decoder& model) {
  std::vector<Parameter*> found;
  model.visit([&](Parameter& parameter) {
    if (parameter.trainable) found.push_back(&parameter);
  });
  return found;
}

}  // namespace nibble
