#pragma once
// Memory of every rank of a training run, from shapes alone: one rank of every stage runs two steps on a device without
// bytes (stage_run.h). Of a stage with many equal layers fewer are run, and their number is then counted up.

#include <optional>
#include <vector>

#include "nibble/core/tensor/memory_use.h"
#include "nibble/parallel/plan/job.h"
#include "nibble/parallel/plan/step_cost.h"

namespace nibble {

/// A rank of one pipeline stage; all ranks of a stage need the same, up to uneven shards (the largest counts).
struct StageMemory {
  LayerRange layers;
  MemorySplit split;      ///< when most is resident
  int64_t pool_peak = 0;  ///< MemoryPool::peak()
  bool fits_pool = true;  ///< every block fits the budget given
  int64_t file = 0;       ///< largest size of the file that activations wait in
  int64_t written = 0;    ///< bytes that go there in a step
  int64_t cached = 0;     ///< mapped weights beyond `split` that the page cache holds between passes, or the disk
  StepCosts costs;
  int64_t resident() const { return split.total(); }  ///< of the process at its largest (VmHWM)
  int64_t needed() const { return resident() + cached; }
};

struct MemoryPlan {
  std::vector<StageMemory> stages;
  /// The stage that needs most.
  const StageMemory& largest() const;
  int64_t needed_bytes() const { return largest().needed(); }
  int64_t resident_bytes() const;
  bool fits(int64_t budget) const;
};

/// stages: first layer of every stage and, at the end, L. budget: what the ranks' pools may hold, 0 = no limit.
/// threads: of a rank. all_layers: the margin, which grows in no straight line, is that of a run of all layers; for one
/// layout of many to choose from that of few layers will do.
MemoryPlan plan_memory(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages, int threads,
                       int64_t budget = 0, bool all_layers = true);

/// Which layers run again in the backward pass, [L], so that every stage has at most `room` bytes resident and its pool
/// fits the budget: in every stage the lowest ones, as few as will do; all of them where that is not enough. (What the
/// highest layers keep is used first and gone when the lower ones run again.)
std::vector<bool> layers_to_recompute(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages,
                                      int threads, int64_t room, int64_t budget, bool all_layers = true);

/// The fastest of stage_placements() in which every stage fits the budget; where none does, the one whose largest stage
/// is smallest. What a run uses: the same on all its ranks.
std::vector<int64_t> place_stages(const PlanJob& job, const PlanLayout& layout, int threads, int64_t budget = 0);

}  // namespace nibble
