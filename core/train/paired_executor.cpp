#include "nibble/core/train/paired_executor.h"

#include "nibble/core/base/error.h"

namespace nibble {

PairedExecutor::PairedExecutor(Model first, Model second, const Objective& objective)
    : StepExecutor(first.executor->rank()),
      first_(std::move(first)),
      second_(std::move(second)),
      objective_(objective) {}

std::vector<int64_t> PairedExecutor::begin_step(int64_t count) {
  std::vector<int64_t> mine = first_.executor->begin_step(count);
  NIBBLE_CHECK(second_.executor->begin_step(count) == mine, "both models compute the same microbatches");
  return mine;
}

StepSums PairedExecutor::gradients(std::span<const Batch> microbatches, const Objective& objective,
                                   const std::vector<Parameter*>&, const StepOptions& options) {
  StepSums sums = first_.executor->gradients(microbatches, objective, first_.parameters, options);
  if (sums.counts.divisor == 0) return sums;
  const StepSums more = second_.executor->gradients(microbatches, objective_, second_.parameters, options);
  sums.loss += more.loss;
  sums.squares += more.squares;
  sums.metrics.insert(sums.metrics.end(), more.metrics.begin(), more.metrics.end());
  return sums;
}

void PairedExecutor::after_update() {
  first_.executor->after_update();
  second_.executor->after_update();
}

double PairedExecutor::loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                                const StepContext& step) {
  return first_.executor->loss_sum(batch, objective, counts, step);
}

Tensor PairedExecutor::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  return first_.executor->next_logits(batch, step, cache);
}

Metrics PairedExecutor::take_metrics(const Objective& objective, const LossCounts& counts) {
  return first_.executor->take_metrics(objective, counts);
}

double PairedExecutor::microbatch(const StepWork&, int64_t) {
  NIBBLE_CHECK(false, "both models compute microbatches by executors of their own");
  return 0;
}

}  // namespace nibble
