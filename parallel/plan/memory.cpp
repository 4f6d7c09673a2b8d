#include "nibble/parallel/plan/memory.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "nibble/parallel/plan/stage_walk.h"
#include "nibble/parallel/plan/step_time.h"

namespace nibble {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// What a process of this program has resident before it holds anything, and for every thread (buffers of products, see
// gemm_workspace.h, and stacks); a rank of a job has the MPI library besides: what a model of 64 x 4 layers takes
// alone, and on several ranks, less its pool.
constexpr int64_t kProgramBytes = 20 * kMiB, kThreadBytes = 5 * kMiB / 2, kMpiBytes = 9 * kMiB;

}  // namespace

const StageMemory& MemoryPlan::largest() const {
  return *std::ranges::max_element(stages, {}, [](const StageMemory& stage) { return stage.needed(); });
}

int64_t MemoryPlan::resident_bytes() const {
  return std::ranges::max(stages | std::views::transform(&StageMemory::resident));
}

bool MemoryPlan::fits(int64_t budget) const {
  if (budget == 0) return true;
  return needed_bytes() <= budget && std::ranges::all_of(stages, &StageMemory::fits_pool);
}

namespace {

// part: of the model, of one of layout.tensor ranks.
StageMemory plan_stage(const PlanJob& job, const PlannedModel& part, const PlanLayout& layout, const LayerRange& range,
                       int64_t stage, int threads, int64_t budget) {
  detail::StageWalk walk(job, part, layout, range, stage, budget);
  walk.run();
  StageMemory memory{range, walk.pool().most_resident(), walk.pool().peak(), walk.pool().fitted()};
  memory.cached = walk.cached();
  memory.split[MemoryUse::workspace] += threads * kThreadBytes;
  memory.split[MemoryUse::program] += kProgramBytes + job.program_bytes + (layout.ranks() > 1 ? kMpiBytes : 0);
  memory.file = walk.spill().file;
  memory.written = walk.spill().written * microbatches_of_rank(job, layout);
  return memory;
}

}  // namespace

MemoryPlan plan_memory(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages, int threads,
                       int64_t budget) {
  const PlannedModel part = tensor_part(job.model, layout.tensor);
  MemoryPlan plan;
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    plan.stages.push_back(
        plan_stage(job, part, layout, {stages[s], stages[s + 1]}, static_cast<int64_t>(s), threads, budget));
  }
  return plan;
}

std::vector<bool> layers_to_recompute(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages,
                                      int threads, int64_t room, int64_t budget) {
  const PlannedModel part = tensor_part(job.model, layout.tensor);
  std::vector<bool> chosen(static_cast<size_t>(job.model.config.layers), false);
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    const LayerRange range{stages[s], stages[s + 1]};
    const auto below = [&](int64_t layer) {
      std::vector<bool> again = chosen;
      std::fill(again.begin() + range.begin, again.begin() + layer, true);
      return again;
    };
    const auto fits = [&](int64_t layer) {
      PlanLayout tried = layout;
      tried.recomputed = below(layer);
      const StageMemory memory = plan_stage(job, part, tried, range, static_cast<int64_t>(s), threads, budget);
      return memory.needed() <= room && memory.fits_pool;
    };
    int64_t least = range.begin, most = range.end;  // least: not tried, or does not fit
    const int64_t lowest = lowest_with_backward(part, range);
    if (lowest == range.end || fits(lowest)) continue;
    for (least = lowest; most - least > 1;) {
      const int64_t middle = least + (most - least) / 2;
      (fits(middle) ? most : least) = middle;
    }
    chosen = below(most);
    std::fill(chosen.begin() + range.begin, chosen.begin() + lowest, false);
  }
  return chosen;
}

std::vector<int64_t> place_stages(const PlanJob& job, const PlanLayout& layout, int threads, int64_t budget) {
  std::vector<std::vector<int64_t>> placements = stage_placements(job, layout);
  if (budget == 0 || placements.size() == 1) return placements.front();
  const std::vector<int64_t>* best = nullptr;
  int64_t least = 0;
  // In the order of time; of many some, so that a plan takes no longer than it is worth.
  constexpr size_t kTried = 8;
  const size_t tried = std::min(placements.size(), kTried);
  for (size_t i = 0; i < tried; ++i) {
    const std::vector<int64_t>& one = placements[tried > 1 ? i * (placements.size() - 1) / (tried - 1) : 0];
    const MemoryPlan plan = plan_memory(job, layout, one, threads, budget);
    if (plan.fits(budget)) return one;
    if (!best || plan.needed_bytes() < least) {
      best = &one;
      least = plan.needed_bytes();
    }
  }
  return *best;
}

}  // namespace nibble
