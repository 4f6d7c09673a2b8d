#pragma once
// run.json: what a run was made of, beside what it measured: program, machine, model, data.

#include <filesystem>
#include <string>

#include "nibble/core/models/decoder.h"
#include "nibble/parallel/mesh.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

/// Weights of the whole model, and those of them that are trained.
struct WeightCounts {
  double all = 0, trained = 0;
};

/// `model` is as it will be trained. Called by all ranks.
WeightCounts count_weights(Decoder& model, const Mesh& mesh);

/// What the run starts from: the directory of the model, or the description that pretraining initializes it from.
std::string base_of(const Recipe& recipe);

/// Writes `directory`/run.json: {"nibble", "started", "machine", "ranks", "model", "data"}. Called by the first rank,
/// whose machine it is; numbers are of the whole model.
void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe, const Decoder& model,
                     const WeightCounts& counts, const Mesh& mesh, const TrainingData& data, int threads);

}  // namespace nibble
