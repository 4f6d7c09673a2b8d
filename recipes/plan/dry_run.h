#pragma once
// What a recipe would do, without training: `nibble validate` and `nibble preview`.

#include "nibble/core/data/batches.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

struct DryRun {
  int64_t total_steps = 0;
  StepInfo first_step;
  DatasetReport report;                 ///< of the training data
  std::vector<SamplePreview> previews;  ///< the first samples of the data, as the model sees them
  /// Samples whose trained tokens hold none that ends a text, among the first 1000; a model trained only on such does
  /// not learn to stop. Texts, which packing may cut, are not counted.
  int64_t samples_without_end = 0;
  int64_t parameters = 0;       ///< of the model
  int64_t adapted_modules = 0;  ///< that the adapter's target_modules select
};

/// Opens config, tokenizer, adapter configuration and data as the recipe does and lays out the first step; loads no
/// weights and leaves nothing behind (output.dir is tried by writing a file, which is removed). Tells the observer of
/// what looks wrong. Throws what training would throw.
DryRun dry_run(const Recipe& recipe, const Observer& observer, int64_t previews = 0);

}  // namespace nibble
