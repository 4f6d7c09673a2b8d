#pragma once
// How fast this machine trains a model: a layer like the job's, with weights of zeros, is really run.

#include "nibble/parallel/plan/step_time.h"
#include "nibble/recipes/recipe.h"

namespace nibble {

/// Seconds of one microbatch of `job` (made from `recipe`) on one of `ranks` ranks with `threads` threads each, nothing
/// recomputed: a block of the model's shape (a slice of its heads and hidden units where it is large) and the head are
/// run a few times on up to job.tokens tokens, the update is timed with them, and the rest is scaled by operations.
/// As many ranks as have cores of their own do so at the same time. Takes about a second.
PassSeconds measure_passes(const Recipe& recipe, const PlanJob& job, int64_t ranks, int threads);

/// This machine as a cluster of ranks in one place: peak operations and memory bandwidth are measured, exchanges go
/// through memory and nothing is hidden behind them (see docs/scaling.md).
Cluster this_machine_as_cluster(int ranks, int threads, bool bf16);

}  // namespace nibble
