#pragma once
// Time and traffic of one optimizer step, from what its ranks were counted to do and the constants of a machine.

#include <map>
#include <string>
#include <vector>

#include "nibble/parallel/plan/cluster.h"
#include "nibble/parallel/plan/memory.h"

namespace nibble {

/// Seconds that a rank takes for one microbatch.
struct PassSeconds {
  std::vector<double> layer_forward, layer_backward;  ///< [L]
  double head = 0;                                    ///< forward and backward
  double update = 0;                                  ///< of a trained value; once a step
  double operation = 0;                               ///< of other passes: of references, teachers, and that draw
  double byte = 0;                                    ///< of weights that a pass reads; 0: not known
};

/// Operations of a microbatch beside those that the gradients of next tokens take: of references, of a teacher.
double objective_flops(const PlanJob& job, const PlanLayout& layout, const StageMemory& stage);

/// From a cluster's operations and bandwidth, of one tensor-parallel rank; exchanges are not in it.
PassSeconds pass_seconds(const PlanJob& job, const PlanLayout& layout, const Cluster& cluster);

/// How values travel; nibble's own, or those of the program whose run is predicted.
struct WireFormat {
  double weight_bytes = 4;  ///< a gathered trained value
  double stream_bytes = 4;  ///< of activations, an element of the residual stream
  double interleave = 1;    ///< chunks of layers of one pipeline stage
};

/// Bytes that a rank sends in a step, by operation ("gather weights", "sum gradients", "activations", ...), of each the
/// stage whose ranks send most.
using Traffic = std::map<std::string, double>;
Traffic traffic_of(const PlanJob& job, const PlanLayout& layout, const MemoryPlan& plan);

struct StepTime {
  double seconds = 0;
  double computing = 0;          ///< of the slowest stage
  double communicating = 0;      ///< what is not hidden behind computing
  double waiting = 0;            ///< of a stage for others
  double spilling = 0;           ///< for the file of activations: what is not hidden behind computing
  double tokens_per_second = 0;  ///< of the whole run
};

StepTime step_time(const PlanJob& job, const PlanLayout& layout, const MemoryPlan& plan, const PassSeconds& pass,
                   const Cluster& cluster, const WireFormat& wire = {});

/// Adds what a rank waits for a file that gets `bytes` in a step and gives them back: a thread moves them while others
/// compute.
void add_spill(StepTime& time, double bytes, const Cluster& cluster);

/// The placements of layers on layout.mesh.pipeline stages to choose from, the one whose slowest stage is fastest (by
/// operations, the same on every machine) first: first layer of every stage and, at the end, L. layout.stages, where
/// given, is the only one.
std::vector<std::vector<int64_t>> stage_placements(const PlanJob& job, const PlanLayout& layout);

}  // namespace nibble
