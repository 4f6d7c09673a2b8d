#pragma once
// Where a run stands, as numbers: smoothed loss, speed, time left. Printing is the command line's.

#include <cstdint>

#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// Exponential moving averages over steps; the first steps count fully, as in the bias correction of Adam (Kingma and
/// Ba 2015). The loss is weighted by label tokens.
class Progress {
 public:
  /// decay: weight kept by the past after one step; 0.95 looks back about 20 steps.
  explicit Progress(double decay = 0.95) : decay_(decay) {}

  void add(const StepReport& report);

  double smoothed_loss() const;
  double tokens_per_second() const;
  /// Of the arithmetic that the CPU could do; 0 when not known.
  double share_of_peak() const;
  /// Seconds until the last step at the average seconds a step; 0 before the first.
  double seconds_left() const;

 private:
  double decay_;
  double weight_ = 0, loss_ = 0, loss_tokens_ = 0, tokens_ = 0, seconds_ = 0, peak_seconds_ = 0;
  int64_t steps_left_ = 0;
};

}  // namespace nibble
