#pragma once
// What a recipe would do, without training: `nibble validate` and `nibble preview`.

#include "nibble/core/data/batches.h"
#include "nibble/core/train/observer.h"
#include "nibble/recipes/recipe.h"

namespace nibble {

struct DryRun {
  int64_t total_steps = 0;
  StepInfo first_step;
  DatasetReport report;                 ///< of the training data
  std::vector<SamplePreview> previews;  ///< the first samples of the data, as the model sees them
};

/// Opens config, tokenizer, adapter configuration and data as the recipe does and lays out the first step; loads no
/// weights and writes nothing. Throws what training would throw.
DryRun dry_run(const Recipe& recipe, const Observer& observer, int64_t previews = 0);

}  // namespace nibble
