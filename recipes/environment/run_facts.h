#pragma once
// run.json: what a run was made of, beside what it measured: program, machine, model, data.

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/models/decoder.h"
#include "nibble/parallel/mesh.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

/// Weights of the whole model, and those of them that are trained.
struct WeightCounts {
  double all = 0, trained = 0;
};

/// `model` is as it will be trained. Called by all ranks.
WeightCounts count_weights(Decoder& model, const Mesh& mesh);

/// Writes `directory`/run.json: {"nibble", "started", "machine", "ranks", "model", "data"}. Called by the first rank,
/// whose machine it is; numbers are of the whole model.
void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe, const Decoder& model,
                     const WeightCounts& counts, const Mesh& mesh, const TrainingData& data, int threads);

/// What a run is about to do, for people, a line each: the base and what of it is trained, with what it is computed,
/// data and steps, and the memory that is planned for this rank with the least time, which is the arithmetic of `work`
/// at `peak` operations a second (0: not known).
std::vector<std::string> run_banner(const Recipe& recipe, Decoder& model, const WeightCounts& counts, const Mesh& mesh,
                                    const TrainingData& data, const RankContext& rank, const Work& work, double peak);

}  // namespace nibble
