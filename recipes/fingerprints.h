#pragma once
// What must be the same when a run is continued, beside the keys of its recipe: what the files that it names hold.

#include <string>

#include "nibble/core/train/run/run.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// Adds to `options` the fingerprint of the data (TrainingData::fingerprint: every token as the run sees it) and the
/// content of each other file that decides bits: "model.fingerprint/FILE" for config.json and weights (or model.init),
/// "adapter.fingerprint/FILE" for the adapter that is continued, "tokenizer.fingerprint/FILE" for the files of
/// `tokenizer` and a template file. Reads what is not remembered (content_hash).
void add_fingerprints(RunOptions& options, const Recipe& recipe, const std::string& tokenizer,
                      const std::string& data_fingerprint);

}  // namespace nibble
