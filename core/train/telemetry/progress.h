#pragma once
// Where a run stands, as numbers: smoothed loss, speed, time left. Printing is the command line's.

#include <cstdint>

#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// Wall time of a step: with what it took to draw and judge its answers where it learns from such (step_time).
double wall_seconds(const StepReport& report);

/// Exponential moving averages over steps; the first steps count fully, as in the bias correction of Adam (Kingma and
/// Ba 2015). The loss is weighted by label tokens.
class Progress {
 public:
  /// decay: weight kept by the past after one step; 0.95 looks back about 20 steps.
  explicit Progress(double decay = 0.95) : decay_(decay) {}

  /// now: seconds by any clock, which measures what lies between two steps: an evaluation, samples, a save.
  void add(const StepReport& report, double now);
  /// What lies between the last step and the next one comes back as often as evaluations do.
  void add(const EvaluationReport& report);
  /// From Observer::on_evaluations_ahead: counts until the first evaluation has been measured.
  void expect_evaluations(double tokens) { expected_tokens_ = tokens; }

  double smoothed_loss() const;
  /// By wall_seconds().
  double tokens_per_second() const;
  /// Of the arithmetic that the CPU could do; 0 when not known.
  double share_of_peak() const;
  /// Seconds until the run is through at the average seconds a step, with what lies between steps at the rate so far
  /// and the evaluations expected; 0 before the first step.
  double seconds_left() const;

 private:
  double decay_;
  double weight_ = 0, loss_ = 0, loss_tokens_ = 0, tokens_ = 0, seconds_ = 0, wall_ = 0, peak_seconds_ = 0;
  int64_t first_ = 0, last_ = 0, total_ = 0;  // steps; first_: 0 before there was one
  double last_now_ = 0;
  double between_ = 0;      // seconds between steps, those before step first_ + 1 to ...
  int64_t counted_to_ = 0;  // ... this one: where there are evaluations, the one behind the last of them
  bool evaluates_ = false, evaluated_ = false;  // ever; since the last step
  double expected_tokens_ = 0;
};

}  // namespace nibble
