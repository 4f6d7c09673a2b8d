#pragma once
// How fast this machine trains a job: a small model like the job's is really trained, and bytes really exchanged.

#include <span>
#include <string>
#include <string_view>

#include "nibble/parallel/plan/machine_time.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

class Communicator;

/// Called by all ranks of `ranks` together, which are on this machine; what the first measured is given to all. `job`
/// is made from `recipe`. For every one of `tensors` (degrees) as many ranks as have cores of their own train a
/// SpeedTrial at the same time, for a few seconds; then all ranks exchange bytes in groups of every size that divides
/// their number. ranks: a few stand for more. With parallel.offload_activations the trials go on with a file where the
/// run will have it (or in the nearest directory above that exists). Throws what the trials throw.
MachineSpeed measure_machine(const Recipe& recipe, const PlanJob& job, std::span<const int64_t> tensors, int threads,
                             Communicator& ranks);
/// The same with `ranks` threads of this process as ranks: what they exchange does not go through MPI, and takes
/// longer.
MachineSpeed measure_machine(const Recipe& recipe, const PlanJob& job, std::span<const int64_t> tensors, int threads,
                             int ranks);

/// As one line, for another process.
std::string to_json(const MachineSpeed& speed);
MachineSpeed machine_speed_from_json(std::string_view text);

}  // namespace nibble
