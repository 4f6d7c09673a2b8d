#include "nibble/core/train/train_step.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/data/batches.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

namespace {

constexpr size_t kMostNamed = 20;

std::string text_of(double value) { return std::isnan(value) ? "nan" : std::to_string(value); }  // never "-nan"

// Only asked when something is known to be wrong: it looks at everything.
std::vector<std::string> find_nonfinite(const std::vector<Parameter*>& parameters, double loss) {
  std::vector<std::string> found;
  for (const bool gradients : {false, true}) {
    for (const Parameter* parameter : parameters) {
      if (found.size() >= kMostNamed) break;
      const std::string bad = gradients ? nonfinite_text("gradient of " + parameter->name, parameter->gradient)
                                        : nonfinite_text(parameter->name, parameter->value);
      if (!bad.empty()) found.push_back(bad);
    }
  }
  if (!std::isfinite(loss)) found.push_back("loss is " + text_of(loss));
  return found;
}

// Whether all ranks may update: one that may not keeps the others from it.
bool all_finite(const StepResult& result, RankContext& rank) {
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  return rank.comm.all_reduce_sum("finite check", finite ? 0.0 : 1.0) == 0;
}

}  // namespace

StepResult train_step(StepExecutor& executor, std::span<const Batch> microbatches, const Objective& objective,
                      Optimizer& optimizer, const StepOptions& options) {
  const std::vector<Parameter*>& parameters = optimizer.parameters();
  const StepSums sums = executor.gradients(microbatches, objective, parameters, options);
  StepResult result;
  result.label_tokens = sums.label_tokens;
  result.tokens = sums.tokens;
  result.computed_tokens = sums.computed_tokens;
  if (sums.counts.divisor == 0) {
    result.updated = false;
    return result;
  }
  result.loss = sums.loss;
  result.metrics = sums.metrics;
  const TraceSpan span(options.trace, Phase::optimizer, "norm and update");
  result.grad_norm = std::sqrt(sums.squares);
  if (!all_finite(result, executor.rank())) {
    result.updated = false;
    result.nonfinite = find_nonfinite(parameters, result.loss);
    if (result.nonfinite.empty()) result.nonfinite = {"a loss or gradient of another rank, or the sum over tensors"};
    return result;
  }

  double clip = 1.0;
  if (options.max_grad_norm > 0) clip = std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6));
  optimizer.step(options.lr, clip);
  Trace* const exchange = executor.rank().comm.size() > 1 ? options.trace : nullptr;
  traced(exchange, Phase::communication, "share values", [&] { executor.after_update(); });
  return result;
}

StepResult train_step(Decoder& model, std::span<const Batch> microbatches, Optimizer& optimizer,
                      const StepOptions& options, RankContext& rank) {
  LocalExecutor executor(model, rank);
  return train_step(executor, microbatches, NextToken(), optimizer, options);
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
