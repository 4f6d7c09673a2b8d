#pragma once
// run.json: what a run was made of, beside what it measured: program, machine, model, data.

#include <filesystem>

#include "nibble/core/models/decoder.h"
#include "nibble/parallel/mesh.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

/// Writes `directory`/run.json: {"nibble", "started", "machine", "ranks", "model", "data"}. `model` is as it will be
/// trained. Called by all ranks; numbers are of the whole model, the machine is the first rank's.
void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe, Decoder& model, const Mesh& mesh,
                     const TrainingData& data, int threads);

}  // namespace nibble
