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

constexpr size_t kMostNamed = 20;

std::string named(const std::string& what, const Tensor& tensor, int64_t at) {
  return what + ", element " + std::to_string(at) + " of " + std::to_string(tensor.numel()) + ", is " +
         std::to_string(tensor.data<const float>()[at]);
}

// Only asked when something is known to be wrong: it looks at everything.
std::vector<std::string> find_nonfinite(const std::vector<Parameter*>& parameters, double loss) {
  std::vector<std::string> found;
  for (const bool gradients : {false, true}) {
    for (const Parameter* parameter : parameters) {
      const Tensor& tensor = gradients ? parameter->gradient : parameter->value;
      const int64_t at = ops::first_nonfinite(tensor);
      if (at < 0 || found.size() >= kMostNamed) continue;
      found.push_back(named(gradients ? "gradient of " + parameter->name : parameter->name, tensor, at));
    }
  }
  if (!std::isfinite(loss)) found.push_back("loss is " + std::to_string(loss));
  return found;
}

// Whether all ranks may update: one that may not keeps the others from it.
bool all_finite(const StepResult& result, RankContext& rank) {
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  return rank.comm.all_reduce_sum("finite check", finite ? 0.0 : 1.0) == 0;
}

}  // namespace

double gradient_squares(const std::vector<Parameter*>& parameters) {
  double squares = 0;
  for (const Parameter* parameter : parameters) squares += ops::sum_of_squares(parameter->gradient);
  return squares;
}

StepResult train_step(const LossAndGradients& loss_and_gradients, std::span<const Batch> microbatches,
                      Optimizer& optimizer, const StepOptions& options, RankContext& rank, const StepLayout& layout) {
  std::array<double, 2> counts{};
  for (const Batch& batch : microbatches) {
    counts[0] += static_cast<double>(batch.label_tokens);
    counts[1] += static_cast<double>(batch.ids.numel());
  }
  Tensor counted = Tensor::from<double>(rank.pool.host(), {2}, counts);
  NIBBLE_CHECK(layout.sum_counts || rank.comm.size() == 1, "several ranks need a layout");
  if (layout.sum_counts) layout.sum_counts(counted);

  StepResult result;
  result.label_tokens = static_cast<int64_t>(counted.data<double>()[0]);
  result.tokens = static_cast<int64_t>(counted.data<double>()[1]);
  if (result.label_tokens == 0) {
    result.updated = false;
    return result;
  }
  const double scale = 1.0 / static_cast<double>(result.label_tokens);
  const std::function<double(int64_t)> run = [&](int64_t i) {
    const bool idle = i >= static_cast<int64_t>(microbatches.size());
    if (idle || microbatches[static_cast<size_t>(i)].label_tokens == 0) {
      if (layout.idle) layout.idle();
      return 0.0;
    }
    const Batch& batch = microbatches[static_cast<size_t>(i)];
    StepContext context{rank, options.compute_dtype, true, static_cast<uint64_t>(options.step), batch.row_keys};
    return loss_and_gradients(batch, context, static_cast<float>(scale));
  };
  const int64_t count = static_cast<int64_t>(microbatches.size());
  const std::vector<Parameter*>& parameters = optimizer.parameters();
  const double loss_sum = layout.sum_gradients ? layout.sum_gradients(options.gradient_sum, parameters, count, run)
                                               : sum_gradients(options.gradient_sum, parameters, count, run, rank.pool);
  result.loss = loss_sum * scale;
  const TraceSpan span(options.trace, Phase::optimizer, "norm and update");
  result.grad_norm = std::sqrt(layout.squares ? layout.squares(parameters) : gradient_squares(parameters));
  if (!all_finite(result, rank)) {
    result.updated = false;
    result.nonfinite = find_nonfinite(parameters, result.loss);
    if (result.nonfinite.empty()) result.nonfinite = {"a loss or gradient of another rank, or the sum over tensors"};
    return result;
  }

  double clip = 1.0;
  if (options.max_grad_norm > 0) clip = std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6));
  optimizer.step(options.lr, clip);
  if (layout.after_update) layout.after_update();
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
