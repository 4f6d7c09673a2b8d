#pragma once
#include <filesystem>
#include <memory>

#include "nibble/core/models/decoder.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

class TrainingData;

/// The smallest of all ranks' values: by numbers of their own they would compute different things together. Collective.
int64_t least_of_all(int64_t value, Communicator& ranks);

/// How a rank keeps what its blocks need for the backward pass. Every way gives the same bits.
struct ActivationPolicy {
  int64_t recompute_below = 0;       ///< see Decoder::recompute_below
  std::unique_ptr<SpillFile> spill;  ///< where they wait; null: in memory. Outlives the passes

  void apply(Decoder& model) const;
};

/// By train.gradient_checkpointing and parallel.offload_activations. `auto` recomputes as few blocks as the plan says
/// that the memory budget asks for (without a budget: what the machine has left, shared by the ranks), and says how
/// many. The file for activations lies in `run_directory` or where the recipe says, with the room that the plan says.
/// Collective. Throws IoError when there is less.
ActivationPolicy activation_policy(const Recipe& recipe, const TrainingData& data, const LayerRange& own,
                                   const std::filesystem::path& run_directory, RankContext& rank,
                                   const Observer& observer);

}  // namespace nibble
