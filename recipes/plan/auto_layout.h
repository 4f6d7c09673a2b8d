#pragma once
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

struct RankContext;

/// The recipe with a number for every degree that is "auto" (0): of the layouts of these ranks that fit the ranks'
/// memory budget the one with the least predicted time (see choose_layout); reported to the observer in one line. The
/// first rank measures and decides for all. Throws UsageError on every rank when none fits.
Recipe with_layout(const Recipe& recipe, RankContext& rank, const Observer& observer);

}  // namespace nibble
