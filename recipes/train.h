#pragma once
// The recipes: what `nibble train` runs, each one file that reads from top to bottom.

#include <filesystem>

#include "nibble/core/train/step_executor.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// Trains an adapter on a 16-bit or 4-bit base (recipe.adapter present) or every weight (absent), and leaves
/// output.dir/adapter (PEFT) or output.dir/model (Hugging Face).
void finetune(const Recipe& recipe, RankContext& rank, const Observer& observer);

/// What the first step of a fine-tuning run computes, before clipping and without an update.
struct FirstStep {
  StepSums sums;
  std::vector<std::pair<std::string, Tensor>> gradients;  ///< f32, under the names of files
};
/// scratch: a directory for activations that do not stay in memory. Leaves nothing behind.
FirstStep first_step(const Recipe& recipe, RankContext& rank, const Observer& observer,
                     const std::filesystem::path& scratch);

/// Trains a model from random weights made from the config at recipe.model.init; a tokenizer is trained on the data
/// first unless recipe.model.tokenizer names one. Leaves output.dir/model.
void pretrain(const Recipe& recipe, RankContext& rank, const Observer& observer);

/// The one of the two that `recipe` asks for; then output.dir/report.html.
void train(const Recipe& recipe, RankContext& rank, const Observer& observer);

/// The same with the time measured: output.dir/profile/rank-R.json is a Chrome trace, and the observer is notified
/// where the time went and what holds the run back.
void train_profiled(const Recipe& recipe, RankContext& rank, const Observer& observer);

}  // namespace nibble
