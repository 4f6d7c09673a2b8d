#pragma once
// The loop that every recipe shares: steps, evaluations, checkpoints, until the run is done or stopped.

#include "nibble/core/models/decoder.h"
#include "nibble/core/train/run.h"
#include "nibble/recipes/recipe.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

/// Trains `model` from where `run` stands to its end. Afterwards the parameters are those to export (the best ones with
/// output.keep_best). tokenizer: where it lies, to show train.samples as text. Throws Interrupted when the observer
/// asks to stop, NumericError for a loss that is not finite.
void run_steps(Run& run, Decoder& model, const TrainingData& data, const Recipe& recipe, const std::string& tokenizer,
               RankContext& rank);

}  // namespace nibble
