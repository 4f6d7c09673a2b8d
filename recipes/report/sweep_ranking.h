#pragma once
// Which run of a sweep is the best.

#include <string_view>
#include <vector>

#include "nibble/recipes/config/sweep.h"
#include "nibble/recipes/report/run_log.h"

namespace nibble {

/// What runs of a sweep are compared by.
enum class SweepMeasure : uint8_t {
  loss,        ///< of the best evaluation, or without one of training
  preference,  ///< accuracy, then margin without beta: the swept keys change what the loss measures
  reward,      ///< of the model's own answers, of whose quality the policy's loss says nothing
  none         ///< the swept keys change that as well
};

/// "loss", "accuracy" (of preferences), "reward"; "" for none.
std::string_view sweep_measure_name(SweepMeasure measure);

/// That of the runs of `recipe` over `axes`.
SweepMeasure sweep_measure(const Recipe& recipe, const std::vector<SweepAxis>& axes);

/// The numbers that a run is sorted by, the least first; infinite: the run has none. beta: its objective.beta.
std::vector<double> sweep_order(SweepMeasure measure, const RunSummary& run, double beta);

}  // namespace nibble
