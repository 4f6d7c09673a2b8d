#include "nibble/recipes/plan/activation_policy.h"

#include <algorithm>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/parallel/plan/ladder.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {

namespace {

std::string text_of(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

// "recomputing 9 of 22 blocks to fit 3.00 GiB"
std::string output(const PlanLayout& layout, const MemoryPlan& plan, int64_t room, bool is_budget) {
  const auto recomputed = std::ranges::count(layout.recomputed, true);
  std::string text = "recomputing " + std::to_string(recomputed) + " of " +
                     count_text(std::ssize(layout.recomputed), "block") + " to fit " + text_of(room) +
                     (is_budget ? "" : " of free memory");
  if (plan.fits(room)) return text;
  return "warning: " + text + ", which is too little by the plan: " + text_of(plan.needed_bytes());
}

}  // namespace

int64_t least_of_all(int64_t value, Communicator& ranks) {
  MemoryPool pool;
  const Tensor mine = Tensor::from<int64_t>(pool, {1}, std::span<const int64_t>(&value, 1));
  Tensor all = Tensor::empty(pool, {ranks.size()}, DType::i64);
  ranks.all_gather("memory of ranks", mine, all);
  return std::ranges::min(all.span<const int64_t>());
}

void ActivationPolicy::apply(Decoder& model) const {
  model.recompute_below(recompute_below);
  model.set_spill(spill.get());
}

ActivationPolicy activation_policy(const Recipe& recipe, const TrainingData& data, const LayerRange& own,
                                   const std::filesystem::path& run_directory, RankContext& rank,
                                   const Observer& observer) {
  const auto& granularity = recipe.train.gradient_checkpointing;
  ActivationPolicy policy;
  policy.recompute_below = granularity == Recompute::block ? own.end : 0;
  if (granularity && !recipe.parallel.offload_activations) return policy;

  const PlanJob job = plan_job(recipe, data);
  PlanLayout layout = plan_layout(recipe);
  const int64_t budget = least_of_all(static_cast<int64_t>(rank.pool.budget()), rank.comm);
  const std::vector<int64_t> stages = place_stages(job, layout, rank.threads, budget);
  if (!granularity) {
    // Without a budget the ranks are taken to be on this machine, with a tenth left to others.
    const int64_t free = this_machine().usable_memory(rank.comm.size()) / 10 * 9;
    const int64_t room = budget > 0 ? budget : least_of_all(free, rank.comm);
    layout.recomputed = layers_to_recompute(job, layout, stages, rank.threads, room, budget);
    if (std::ranges::count(layout.recomputed, true) > 0) {
      observer.message(output(layout, plan_memory(job, layout, stages, rank.threads, budget), room, budget > 0));
    }
    for (int64_t l = own.begin; l < own.end; ++l) {
      if (layout.recomputes(l)) policy.recompute_below = l + 1;
    }
  }
  if (!layout.offload) return policy;
  const MemoryPlan plan = plan_memory(job, layout, stages, rank.threads, budget);
  const auto here = std::ranges::find(plan.stages, own.begin, [](const StageMemory& one) { return one.layers.begin; });
  const std::string& other = recipe.parallel.offload_directory;
  const std::string directory = other.empty() ? run_directory.string() : other;
  policy.spill = std::make_unique<SpillFile>(directory, here->file, rank.pool);
  observer.message("activations wait in a file of " + text_of(here->file) + " in " + directory +
                   (policy.spill->in_memory() ? ", which itself lies in memory (tmpfs): nothing is saved" : ""));
  return policy;
}

}  // namespace nibble
