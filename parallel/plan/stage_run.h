#pragma once
// One rank of a stage from the start of its run to its second step, on a device without bytes: the objects of the run
// themselves, whose pool does the accounting.

#include <array>
#include <map>

#include "nibble/core/tensor/memory_use.h"
#include "nibble/parallel/plan/step_cost.h"
#include "nibble/parallel/plan/work.h"

namespace nibble::detail {

/// Parts of a run: each has a peak of its own, which grows in a straight line with the layers.
enum class Moment : uint8_t { before, embedding, forward, head, backward, between };
constexpr size_t kMoments = 6;

struct StageRun {
  struct Peak {
    MemorySplit split;   ///< when most was held
    int64_t mapped = 0;  ///< of it, of files
    int64_t pool = 0;    ///< MemoryPool::peak()
  };
  std::array<Peak, kMoments> peaks;
  const Peak& largest() const;
  int64_t margin = 0;     ///< of the pool's pages, what no block filled when most was held
  int64_t used_maps = 0;  ///< all mapped bytes that a step uses
  int64_t file = 0;       ///< largest size of the file of activations
  int64_t written = 0;    ///< bytes that go there in a step
  StepCosts costs;
};

/// What a rank of a stage has.
struct StageRank {
  LayerRange layers;
  int64_t recomputed = 0;  ///< lowest of them that run again
  int64_t in_flight = 1;   ///< microbatches between their passes
  int threads = 1;
  int64_t shard = 0;  ///< its place on the shard axis
};

/// A job whose microbatches are `times` as large as those that a plan runs: of very many tokens it runs some.
struct SampledJob {
  PlanJob job;
  double times = 1;
};
/// `most`: tokens, or the fewest that stand together.
SampledJob sample_job(const PlanJob& job, int64_t most);
constexpr int64_t kMostTokens = int64_t{1} << 18;

/// config: the job's, or one of fewer layers.
StageRun run_stage(const PlanJob& job, const DecoderConfig& config, const PlanLayout& layout, const StageRank& stage);

/// The run in which everything has grown by `times` of what lies between two.
StageRun grown(const StageRun& from, const StageRun& to, double times);

/// Layers that keep what they need, layers that run again, microbatches in flight.
using StageSizes = std::array<int64_t, 3>;

/// What was run before, of stages by all else that a run depends on.
struct PlannedRuns {
  using Settings = std::array<int64_t, 22>;
  std::map<std::pair<Settings, StageSizes>, StageRun> stages;
  std::map<int64_t, ModelWork> work;  ///< by tensor degree
};
PlannedRuns& runs_of(const PlanJob& job);

}  // namespace nibble::detail
