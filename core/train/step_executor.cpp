#include "nibble/core/train/step_executor.h"

#include <array>
#include <numeric>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

const Batch* StepWork::microbatch(int64_t i) const {
  if (i >= static_cast<int64_t>(microbatches.size())) return nullptr;
  const Batch& batch = microbatches[static_cast<size_t>(i)];
  return objective.counts(batch).divisor > 0 ? &batch : nullptr;
}

StepContext StepWork::context(RankContext& rank, const Batch& batch) const {
  return {rank, options.compute_dtype, true, static_cast<uint64_t>(options.step), batch.row_keys};
}

std::vector<int64_t> StepExecutor::begin_step(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

StepSums StepExecutor::gradients(std::span<const Batch> microbatches, const Objective& objective,
                                 const std::vector<Parameter*>& parameters, const StepOptions& options) {
  Trace* const trace = rank_.comm.size() > 1 ? options.trace : nullptr;  // what one rank does is no communication
  std::array<double, 4> counts{};
  for (const Batch& batch : microbatches) {
    const LossCounts own = objective.counts(batch);
    counts[0] += own.divisor;
    counts[1] += own.second;
    counts[2] += static_cast<double>(batch.label_tokens);
    counts[3] += static_cast<double>(batch.ids.numel());
  }
  Tensor counted = Tensor::from<double>(rank_.pool.host(), {std::ssize(counts)}, counts);
  traced(trace, Phase::communication, "label tokens", [&] { data_ranks().all_reduce_sum("label tokens", counted); });

  const std::span<const double> total = counted.span<const double>();
  StepSums sums;
  sums.counts = {total[0], total[1]};
  sums.label_tokens = static_cast<int64_t>(total[2]);
  sums.tokens = static_cast<int64_t>(total[3]);
  if (sums.counts.divisor == 0) return sums;
  const double scale = 1.0 / sums.counts.divisor;
  const StepWork work{microbatches, objective, parameters, options, sums.counts, static_cast<float>(scale)};
  const double loss =
      traced(trace, Phase::communication, "sum gradients, wait", [&] { return sum(work); });  // with spans of layers
  sums.loss = loss * scale;
  sums.squares = traced(options.trace, trace ? Phase::communication : Phase::optimizer, "gradient norm",
                        [&] { return squares(parameters); });
  return sums;
}

Communicator& StepExecutor::data_ranks() const {
  NIBBLE_CHECK(rank_.comm.size() == 1, "several ranks have an executor of their own");
  return rank_.comm;
}

double StepExecutor::sum(const StepWork& work) {
  const int64_t count = static_cast<int64_t>(work.microbatches.size());
  return sum_gradients(
      work.options.gradient_sum, work.parameters, count, [&](int64_t i) { return microbatch(work, i); }, rank_.pool);
}

double StepExecutor::squares(const std::vector<Parameter*>& parameters) const { return gradient_squares(parameters); }

TokenLoss LocalExecutor::token_loss(const Objective& objective, const Batch& batch, const LossCounts& counts,
                                    const StepContext& step) {
  if (objective.is_next_token()) return {};
  Tensor reference;
  if (objective.wants_reference()) {
    StepContext base = step;
    base.training = base.adapters_enabled = false;
    base.row_keys = {};
    forward(batch, base, [&](const Tensor& log_probs, Tensor&) {
      reference = log_probs;
      return 0.0;
    });
  }
  return [&objective, &batch, counts, reference](const Tensor& log_probs, Tensor& weights) {
    const std::span<const float> none;
    const LabelLogProbs seen{log_probs.span<const float>(), reference ? reference.span<const float>() : none};
    return objective.loss_sum(batch, seen, counts, weights.span<float>());
  };
}

double LocalExecutor::forward(const Batch& batch, const StepContext& step, const TokenLoss& loss) {
  return decoder_.loss_sum(batch, step, loss);
}

double LocalExecutor::loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                               const StepContext& step) {
  if (batch) return forward(*batch, step, token_loss(objective, *batch, counts, step));
  idle_forward(objective, false);
  return 0;
}

Tensor LocalExecutor::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  return decoder_.next_logits(batch, step, cache);
}

double LocalExecutor::microbatch(const StepWork& work, int64_t i) {
  const Batch* batch = work.microbatch(i);
  if (!batch) return 0;
  const StepContext context = work.context(rank(), *batch);
  const TokenLoss loss = token_loss(work.objective, *batch, work.counts, context);
  return decoder_.loss_sum_and_gradients(*batch, context, work.scale, loss);
}

double gradient_squares(const std::vector<Parameter*>& parameters) {
  double squares = 0;
  for (const Parameter* parameter : parameters) squares += ops::sum_of_squares(parameter->gradient);
  return squares;
}

}  // namespace nibble
