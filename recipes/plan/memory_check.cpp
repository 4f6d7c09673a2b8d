#include "nibble/recipes/plan/memory_check.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/tensor/memory_pool.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/plan/activation_policy.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

namespace {

// What no run on these data does without: a plan from the recipe alone takes every sample to be of data.max_length.
PlanJob least_job(const Recipe& recipe, const TrainingData& data) {
  PlanJob job = plan_job(recipe, data);
  job.saves_midway = false;        // it may end before
  constexpr int64_t kSteps = 100;  // looked at
  int64_t most = 1, passes = 1;
  for (int64_t step = 1; step <= std::min(data.total_steps(), kSteps); ++step) {
    const StepInfo info = data.step_info(step);
    passes = std::max<int64_t>(passes, info.microbatches);
    most = std::max(most, info.tokens / std::max<int64_t>(1, info.microbatches));  // some microbatch has its mean
  }
  job.tokens = std::min(job.tokens, most);
  job.accumulate = std::min<int64_t>(job.accumulate, passes);
  if (data.microbatch_rows() > 0) {  // whole pairs
    const int64_t answers = 2 * recipe.train.microbatch_size;
    job.document_length = std::clamp<int64_t>(data.microbatch_rows() / answers, 1, job.document_length);
    job.tokens = answers * job.document_length;
  }
  job.document_length = std::min(job.document_length, job.tokens);
  job.answer_tokens = std::min(job.answer_tokens, job.document_length - 1);
  return job;
}

}  // namespace

void check_memory(const Recipe& recipe, const TrainingData& data, RankContext& rank) {
  const auto budget = static_cast<int64_t>(rank.pool.budget());
  const MemoryBudget most = budget > 0 ? MemoryBudget{budget, "--max-memory is"} : this_machine().memory_budget();
  const int64_t room = least_of_all(most.bytes, rank.comm), least = least_of_all(budget, rank.comm);
  int64_t needed = 0;
  try {
    const PlanJob job = least_job(recipe, data);
    PlanLayout layout = plan_layout(recipe);
    layout.recompute = recipe.train.gradient_checkpointing.value_or(Recompute::block);
    const MemoryPlan plan =
        plan_memory(job, layout, place_stages(job, layout, rank.threads, least), rank.threads, least);
    for (const StageMemory& stage : plan.stages) needed = std::max(needed, stage.pool_peak);
  } catch (const Error&) {  // what can be trained need not have a plan
    needed = 0;
  }
  needed = -least_of_all(-needed, rank.comm);           // threads, and so scratch, may differ by rank
  if (room == 0 || needed <= room + room / 10) return;  // plans are right within a tenth
  const auto text = [](int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  throw IoError(
      "memory",
      "the tensors of " + std::string(rank.comm.size() > 1 ? "a rank" : "the run") + " need " + text(needed) +
          " by the plan, " + std::string(most.set_by) + " " + text(room),
      "lower train.microbatch_size (and raise train.accumulate) or data.max_length, train an adapter, or shard; "
      "nibble plan shows what they are for and what fits");
}

}  // namespace nibble
