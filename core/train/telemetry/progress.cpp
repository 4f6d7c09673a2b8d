#include "nibble/core/train/telemetry/progress.h"

#include <algorithm>

namespace nibble {

double wall_seconds(const StepReport& report) {
  const auto found = std::ranges::find(report.metrics, "step_time", &NamedNumbers::value_type::first);
  return found == report.metrics.end() ? report.seconds : found->second;
}

void Progress::add(const StepReport& report, double now) {
  const double wall = wall_seconds(report);
  const double label_tokens = static_cast<double>(report.label_tokens);
  weight_ = decay_ * weight_ + 1;
  loss_ = decay_ * loss_ + report.loss * label_tokens;
  loss_tokens_ = decay_ * loss_tokens_ + label_tokens;
  tokens_ = decay_ * tokens_ + static_cast<double>(report.tokens);
  seconds_ = decay_ * seconds_ + report.seconds;
  wall_ = decay_ * wall_ + wall;
  peak_seconds_ = decay_ * peak_seconds_ + report.share_of_peak * report.seconds;
  if (first_ == 0) {
    first_ = counted_to_ = report.step;
  } else {
    between_ += std::max(0.0, now - last_now_ - wall);
    if (evaluated_ || !evaluates_) counted_to_ = report.step;
  }
  evaluated_ = false;
  last_ = report.step;
  last_now_ = now;
  total_ = report.total_steps;
}

void Progress::add(const EvaluationReport&) { evaluates_ = evaluated_ = true; }

double Progress::smoothed_loss() const { return loss_tokens_ > 0 ? loss_ / loss_tokens_ : 0; }

double Progress::tokens_per_second() const { return wall_ > 0 ? tokens_ / wall_ : 0; }

double Progress::share_of_peak() const { return wall_ > 0 ? peak_seconds_ / wall_ : 0; }

double Progress::seconds_left() const {
  if (weight_ == 0) return 0;
  double left = static_cast<double>(total_ - last_) * wall_ / weight_;
  const bool has_between = counted_to_ > first_;
  if (has_between) {  // one of them follows the last step
    left += between_ / static_cast<double>(counted_to_ - first_) * static_cast<double>(total_ + 1 - counted_to_);
  }
  if (!(evaluates_ && has_between) && tokens_ > 0) left += expected_tokens_ * seconds_ / tokens_;
  return left;
}

}  // namespace nibble
