#include "nibble/recipes/recompute_policy.h"

#include "nibble/core/base/machine.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/recipes/plan_job.h"

namespace nibble {

Recompute recompute_policy(const Recipe& recipe, const RankContext& rank) {
  if (recipe.train.gradient_checkpointing) return *recipe.train.gradient_checkpointing;
  const PlanJob job = plan_job(recipe);
  const PlanLayout layout = plan_layout(recipe);
  const auto budget = static_cast<int64_t>(rank.pool.budget());
  // Without a budget the ranks are taken to be on this machine, with a tenth left to others.
  const int64_t room = budget > 0 ? budget : this_machine().usable_memory() / 10 * 9 / rank.comm.size();
  const MemoryPlan plan =
      plan_memory(job, layout, place_stages(job, layout, rank.threads, budget), rank.threads, budget);
  return plan.fits(room) ? Recompute::none : Recompute::block;
}

}  // namespace nibble
