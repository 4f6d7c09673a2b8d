#pragma once
#include "nibble/core/base/rank_context.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

class TrainingData;

/// Refuses, before a weight is read, a run whose tensors cannot be held: by the plan, for the data as they are, one
/// rank alone needs more than the budget of its pool, or, without a budget, than this machine or container has at all.
/// What is mapped from files does not count, answers that are drawn are as long as they may be, and blocks recompute
/// where the recipe lets them. Collective. Throws IoError.
void check_memory(const Recipe& recipe, const TrainingData& data, RankContext& rank);

}  // namespace nibble
