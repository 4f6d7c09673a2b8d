#include "nibble/parallel/sharded_executor.h"

#include "nibble/core/base/trace.h"

namespace nibble {

void ShardedExecutor::idle_forward(const Objective& objective, bool training) {
  if (!parallel_.collective()) return;
  if (objective.wants_reference()) decoder().idle_forward(false);
  decoder().idle_forward(training);
}

double ShardedExecutor::sum(const StepWork& work) {
  return parallel_.sum_gradients(work.options.gradient_sum, work.parameters,
                                 static_cast<int64_t>(work.microbatches.size()),
                                 [&](int64_t i) { return microbatch(work, i); });
}

double ShardedExecutor::microbatch(const StepWork& work, int64_t i) {
  if (work.microbatch(i) || !parallel_.collective()) return LocalExecutor::microbatch(work, i);
  const TraceSpan span(work.options.trace, Phase::communication, "idle");
  idle_forward(work.objective, true);
  decoder().idle_backward();
  return 0;
}

}  // namespace nibble
