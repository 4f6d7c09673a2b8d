#pragma once
#include "nibble/core/nn/activation_store.h"
#include "nibble/recipes/recipe.h"

namespace nibble {

struct RankContext;

/// train.gradient_checkpointing; `auto` keeps all activations where the plan of the run fits the rank's budget (without
/// one: what the machine has left when the run starts, shared by the ranks), else recomputes block by block. Both give
/// the same bits.
Recompute recompute_policy(const Recipe& recipe, const RankContext& rank);

}  // namespace nibble
