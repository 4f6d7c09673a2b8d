#pragma once
// Checkpoints of a run: whole or absent, verified when read, resumable to the same bits.
//
// checkpoints/step-N/
//   state.json                            step, settings, best evaluation
//   recipe.json                           the resolved recipe
//   trainable-00000-of-00001.safetensors  rank 0's slices of the trainable parameters; a rank without any has no file
//   optimizer-00000-of-00001.safetensors  and of the optimizer's state; where each slice lies is in the metadata
//   manifest.json                         format version, size and XXH3-128 of every other file; written last
//
// Published by rename (AtomicDirectory): a directory `.tmp-nibble-...` is written, each file fsynced, the manifest
// last, the directory renamed to step-N, the parent fsynced; older checkpoints are pruned after that.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

class Communicator;

/// Version of the layout above. A newer one is refused, never guessed at.
inline constexpr int kCheckpointFormat = 1;

/// The part of a tensor that one rank holds: `value` is the box of the global tensor that starts at `offset`.
struct CheckpointSlice {
  std::string name;
  Tensor value;        ///< f32, or u8 (8-bit optimizer state)
  Shape global_shape;  ///< shape of the global tensor
  Shape offset;        ///< first index in every dimension
};

/// Global tensors as slices, one each.
std::vector<CheckpointSlice> full_slices(const std::vector<NamedTensor>& tensors);

/// Elements [begin, begin + value.numel()) of a tensor of shape `global_shape` in row-major order, value [n] f32, as
/// the boxes they consist of; the boxes share value's bytes.
std::vector<CheckpointSlice> flat_slices(const std::string& name, const Tensor& value, const Shape& global_shape,
                                         int64_t begin);

/// What of a step is still to be done after its update, because the run was stopped there. (Files that are not finished
/// are in core/io/files/unfinished.h.)
enum class Unfinished { nothing, evaluation, samples };

/// Everything of a run that is not a tensor.
struct TrainingState {
  int64_t step = 0;               ///< steps done; the data order is a function of it
  int64_t optimizer_updates = 0;  ///< of these, steps in which the optimizer moved (t of Adam)
  /// What must not change between stop and resume, name -> JSON text: recipe keys, fingerprints of base and data.
  std::map<std::string, std::string> settings;
  std::string recipe;      ///< the resolved recipe, JSON text
  int64_t num_tokens = 0;  ///< seen so far, see StepReport
  std::string rollouts;    ///< answers that steps to come learn from as well, JSON text; "": none
  std::optional<double> best_loss;
  int64_t best_step = 0;
  int64_t evaluations_since_best = 0;
  Unfinished unfinished = Unfinished::nothing;  ///< evaluation: and the samples after it
};

/// Name of the folder of a checkpoint, "step-12".
std::string checkpoint_name(int64_t step);

/// Writes `directory`/step-N by the protocol above and returns its path; an existing step-N is replaced.
/// Throws IoError (no space among them) and, for a value that is not finite, NumericError; `directory` then holds what
/// it held before.
std::filesystem::path save_checkpoint(const std::filesystem::path& directory, const TrainingState& state,
                                      const std::vector<CheckpointSlice>& trainable,
                                      const std::vector<CheckpointSlice>& optimizer);

/// The same by all ranks of `ranks` together, each with its own slices, into one directory that all of them see. When
/// one fails, all throw and nothing is published.
std::filesystem::path save_checkpoint(const std::filesystem::path& directory, const TrainingState& state,
                                      const std::vector<CheckpointSlice>& trainable,
                                      const std::vector<CheckpointSlice>& optimizer, Communicator& ranks);

/// Checks sizes and hashes of every file in the manifest and reads the state. Throws InputError naming the file that is
/// damaged or missing; a format newer than kCheckpointFormat is an InputError that says so.
TrainingState read_checkpoint_state(const std::filesystem::path& checkpoint);

/// Fills the slices from whatever slices the checkpoint has. Throws InputError when a tensor is missing, is not in the
/// model, has another global shape, or is not covered entirely.
void load_checkpoint_tensors(const std::filesystem::path& checkpoint, const std::vector<CheckpointSlice>& trainable,
                             const std::vector<CheckpointSlice>& optimizer);

/// A checkpoint that verified.
struct FoundCheckpoint {
  std::filesystem::path path;
  TrainingState state;
};

/// The newest checkpoint in `directory` that verifies. Tells the observer about each newer one that does not. Nothing
/// when there is none at all; throws InputError when there are some and none verifies, or the newest has a newer
/// format.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& directory, const Observer& observer);

/// Removes checkpoints of `directory` older than the `keep_last` newest among those up to step `newest` (the last one
/// known to be valid), but never `keep_step`. Later ones are not touched.
void prune_checkpoints(const std::filesystem::path& directory, int64_t newest, int keep_last,
                       std::optional<int64_t> keep_step);

/// Steps of the checkpoints in `directory`, valid or not, ascending; empty when there is no such directory.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& directory);

}  // namespace nibble
