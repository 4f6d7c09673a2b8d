#include "nibble/core/train/telemetry/progress.h"

namespace nibble {

void Progress::add(const StepReport& report) {
  const double label_tokens = static_cast<double>(report.label_tokens);
  weight_ = decay_ * weight_ + 1;
  loss_ = decay_ * loss_ + report.loss * label_tokens;
  loss_tokens_ = decay_ * loss_tokens_ + label_tokens;
  tokens_ = decay_ * tokens_ + static_cast<double>(report.tokens);
  seconds_ = decay_ * seconds_ + report.seconds;
  peak_seconds_ = decay_ * peak_seconds_ + report.share_of_peak * report.seconds;
  steps_left_ = report.total_steps - report.step;
}

double Progress::smoothed_loss() const { return loss_tokens_ > 0 ? loss_ / loss_tokens_ : 0; }

double Progress::tokens_per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

double Progress::share_of_peak() const { return seconds_ > 0 ? peak_seconds_ / seconds_ : 0; }

double Progress::seconds_left() const {
  return weight_ > 0 ? static_cast<double>(steps_left_) * seconds_ / weight_ : 0;
}

}  // namespace nibble
