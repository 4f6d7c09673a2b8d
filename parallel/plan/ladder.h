#pragma once
// Which layout to take: the ladder from the simplest to the most frugal, and the fastest that fits.

#include <functional>
#include <string>
#include <vector>

#include "nibble/parallel/plan/memory.h"
#include "nibble/parallel/plan/step_time.h"

namespace nibble {

/// A layout with what it costs.
struct PlannedLayout {
  std::string rung;  ///< "data parallel", "zero 2", ...; of a choice its description
  PlanLayout layout;
  std::vector<int64_t> stages;  ///< first layer of every stage, and L
  MemoryPlan memory;
  StepTime time;
  Traffic traffic;
  int64_t file_bytes = 0, spilled_bytes = 0;  ///< file of activations of a rank, and what is written to it in a step
  bool fits = true;
  std::string why_not;  ///< does not exist, or what it lacks; empty where it fits
};

/// What layouts are judged by.
struct LayoutCosts {
  int threads = 1;     ///< of a rank
  int64_t budget = 0;  ///< bytes of a rank, 0 = none
  Cluster cluster;
  /// Of a layout as it was planned, where it is not to come from `cluster`.
  std::function<StepTime(const PlanLayout&, const MemoryPlan&)> time;
  bool time_has_offload = false;  ///< `time` counts what activations in a file take; else cluster.disk_bandwidth does
};

/// all_layers: see plan_memory.
PlannedLayout plan_layout_costs(const PlanJob& job, const PlanLayout& layout, const LayoutCosts& costs,
                                bool all_layers = true);

/// The rungs for `ranks` ranks, whether they fit or not: data parallel, checkpointing, ZeRO-2, ZeRO-3, pipeline (those
/// with checkpointing), offload: zero 3 or pipeline, which needs less, with activations in a file. A single rank has
/// the first two and the last. base: settings besides degrees.
std::vector<PlannedLayout> walk_ladder(const PlanJob& job, const PlanLayout& base, int64_t ranks,
                                       const LayoutCosts& costs);

/// Degrees that are given; 0 = free.
struct GivenDegrees {
  int64_t pipeline = 0, replicate = 0, shard = 0, tensor = 0;
  bool recompute_is_free = false;  ///< train.gradient_checkpointing=auto
};

/// The layout of `ranks` ranks with the least predicted time among those that fit the budget; of equal ones that which
/// moves least. Where none fits, the one that needs least memory (fits is false). Throws UsageError when the degrees
/// given do not divide `ranks`.
PlannedLayout choose_layout(const PlanJob& job, const PlanLayout& base, int64_t ranks, const GivenDegrees& given,
                            const LayoutCosts& costs);

}  // namespace nibble
