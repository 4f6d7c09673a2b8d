#pragma once
// Runs that others measured on large machines, and what the plan says of them: how it is known that it holds there.

#include <string>
#include <vector>

#include "nibble/parallel/plan/step_time.h"

namespace nibble {

/// One published number.
struct KnownRun {
  std::string id, group, model, note;
  PlanJob job;
  PlanLayout layout;
  MemoryPlan plan;
  WireFormat wire;
  Cluster cluster;   ///< efficiency (and half_width, where asked for) are fitted, the rest is as described
  std::string unit;  ///< "tokens/s" and "TFLOP/s" of a rank, or "s" of a step
  double measured = 0;
  std::vector<std::string> from;  ///< ids of the runs that its constants are fitted on; empty: it is such a run itself
};

/// Reads benchmarks/published_runs.json. Throws InputError naming the row.
std::vector<KnownRun> read_known_runs(const std::string& file);

/// What the plan says in the run's unit with these constants.
double predict(const KnownRun& run, const Cluster& cluster);

/// The cluster of `runs.front()` with the efficiency (and, for three runs or more, the half width) that fit these runs
/// best: least squares of log(predicted / measured).
Cluster fit(const std::vector<const KnownRun*>& runs);

struct Prediction {
  const KnownRun* run = nullptr;
  Cluster constants;
  double predicted = 0;
  double error() const { return predicted / run->measured - 1; }
};

/// Every run that is not fitted on, predicted from constants fitted on the runs it names.
std::vector<Prediction> predict_held_out(const std::vector<KnownRun>& runs);

}  // namespace nibble
