#pragma once
// A small model of a job's shape, trained for real: how long its parts take on this machine.

#include <memory>
#include <string>

#include "nibble/parallel/plan/job.h"
#include "nibble/parallel/plan/machine_time.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

class Communicator;

/// Some layers of the width of `job`'s model (this rank's part of them), embedding and head, weights of zeros. Layers
/// are so many that their weights come from memory, as in the whole model, not from a cache; heads, hidden units and
/// vocabulary are fewer where the model is large, and where it is very large the width is less.
class SpeedTrial {
 public:
  /// tp_ranks: the tensor-parallel ranks, which train together. gathering: ranks that gather the weights of every layer
  /// together, so each begins it when all have come as far; null: none. side_by_side: how many ranks have a trial on
  /// this machine at the same time, and share its memory. ranks: of the run; the trial has no more layers (but two, and
  /// one of each kind that comes early) than each of them would have of the model, and so no more memory.
  SpeedTrial(const Recipe& recipe, const PlanJob& job, Communicator& tp_ranks, Communicator* gathering, int threads,
             int64_t side_by_side, int64_t ranks);
  ~SpeedTrial();

  /// Whether the trial of a job is narrow and short: its layers are so large that this gives their speed as well.
  static bool is_large(const PlanJob& job);
  /// Floating-point operations of a step in which nothing is recomputed.
  double operations() const;

  /// From now on what blocks keep for the backward pass (`recompute`: their inputs) waits in files in `directory`,
  /// which are written once; by all `tp_ranks`. Throws IoError as SpillFile does.
  void keep_in_file(const std::string& directory, Recompute recompute);
  /// One step of one microbatch: forward, loss, backward, norm, update; by all `tp_ranks`. Returns its seconds.
  double step();
  /// Draws answers of job.block for about a second, with the model as it is; by all `tp_ranks`.
  void draw();
  /// The means of the steps since forget(), scaled to the job's model by operations, and by values. After
  /// keep_in_file only what that says of recomputation was measured.
  PartSeconds seconds() const;
  void forget();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
