#pragma once
// The lines with which a run begins, for people.

#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/recipes/environment/run_facts.h"

namespace nibble {

struct Work;

/// What a run is about to do, for people, a line each: the base and what of it is trained, with what it is computed,
/// data and steps, and the memory that is planned for this rank with the least time, which is the arithmetic of `work`
/// at `peak` operations a second (0: not known).
std::vector<std::string> run_banner(const Recipe& recipe, Decoder& model, const WeightCounts& counts, const Mesh& mesh,
                                    const TrainingData& data, const RankContext& rank, const Work& work, double peak);

}  // namespace nibble
