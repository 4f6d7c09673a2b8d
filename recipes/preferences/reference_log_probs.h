#pragma once
// What a reference says of a data set: computed once before training, and kept for other runs.

#include <filesystem>

#include "nibble/core/train/step_executor.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/preferences/objective_samples.h"
#include "nibble/recipes/preferences/text_log_probs.h"

namespace nibble {

/// How the reference is computed.
struct ReferencePass : LogProbPass {
  /// File that keeps the result, named for all that decides it; empty: none.
  std::filesystem::path kept;
};

/// Log-probabilities of all samples (and surveyed ones) as the executor's model is now. Shared out over the data ranks;
/// all ranks get them. A kept file is read instead, or gone on with where the pass had been stopped. Tells how far it
/// is, as work of step 0; throws Interrupted when asked to stop.
ReferenceLogProbs reference_log_probs(StepExecutor& executor, const ObjectiveSamples& samples,
                                      const ReferencePass& pass, const Observer& observer);

}  // namespace nibble
