#include "nibble/parallel/sharded_executor.h"

#include "nibble/core/base/trace.h"

namespace nibble {

double ShardedExecutor::loss_sum(const Batch* batch, const Objective& objective, const StepContext& step) {
  if (!batch && parallel_.collective()) decoder().idle_forward(false);
  return LocalExecutor::loss_sum(batch, objective, step);
}

double ShardedExecutor::sum(const StepWork& work) {
  return parallel_.sum_gradients(work.options.gradient_sum, work.parameters,
                                 static_cast<int64_t>(work.microbatches.size()),
                                 [&](int64_t i) { return microbatch(work, i); });
}

double ShardedExecutor::microbatch(const StepWork& work, int64_t i) {
  if (!work.microbatch(i) && parallel_.collective()) {
    const TraceSpan span(work.options.trace, Phase::communication, "idle");
    decoder().idle_forward(true);
    decoder().idle_backward();
  }
  return LocalExecutor::microbatch(work, i);
}

}  // namespace nibble
