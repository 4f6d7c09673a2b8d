#pragma once
// The loop that every recipe shares: steps, evaluations, checkpoints, until the run is done or stopped.

#include "nibble/core/models/decoder.h"
#include "nibble/core/train/run.h"
#include "nibble/parallel/parallel_model.h"
#include "nibble/recipes/recipe.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

/// The layers of this rank's stage: parallel.stages, or as place_stages() says for the rank's memory budget. Throws
/// UsageError when the list does not fit the model.
LayerRange stage_layers(const Recipe& recipe, const DecoderConfig& config, const Mesh& mesh, const RankContext& rank);

/// What the recipe's `parallel` section and the rest say about a ParallelModel.
ParallelOptions parallel_options(const Recipe& recipe);

/// Trains `model` from where `run` stands to its end, spread over ranks as `parallel` says. Afterwards the parameters
/// are those to export (the best ones with output.keep_best). tokenizer: where it lies, to show train.samples as text.
/// Throws Interrupted when the observer asks to stop,
/// NumericError for a loss that is not finite.
void run_steps(Run& run, Decoder& model, ParallelModel& parallel, const TrainingData& data, const Recipe& recipe,
               const std::string& tokenizer, RankContext& rank, const Observer& observer);

}  // namespace nibble
