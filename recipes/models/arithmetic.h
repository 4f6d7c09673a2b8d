#pragma once
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

struct RankContext;

/// The recipe with what its run computes in, and this process computing so: what the recipe names; else what the run
/// or checkpoint in output.dir began with, on whatever CPU that was; else what the first rank's CPU is faster at, and
/// the reason is reported to the observer. All ranks compute alike.
Recipe with_arithmetic(const Recipe& recipe, RankContext& rank, const Observer& observer);

/// Products of bf16 tensors in this process from now on as `model` has them (ModelRecipe::products).
void use_arithmetic(const ModelRecipe& model);

/// "products of bf16 numbers in f32, which this CPU does 2.0 times as fast as by its bf16 instructions"; empty where
/// the bf16 instructions are used or there are none.
std::string arithmetic_reason();

}  // namespace nibble
