#include "nibble/core/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble {

double Schedule::lr_at(int64_t updates_done) const {
  const double k = static_cast<double>(updates_done);
  const double warmup = static_cast<double>(warmup_steps);
  if (updates_done < warmup_steps) return lr * k / warmup;
  const double decay_steps = std::max(1.0, static_cast<double>(total_steps - warmup_steps));
  switch (kind) {
    case ScheduleKind::constant:
      return lr;
    case ScheduleKind::linear:
      return min_lr + (lr - min_lr) * std::max(0.0, (static_cast<double>(total_steps) - k) / decay_steps);
    case ScheduleKind::cosine:
      return min_lr + (lr - min_lr) * (1 + std::cos(std::numbers::pi * std::min(1.0, (k - warmup) / decay_steps))) / 2;
  }
  return lr;
}

int64_t warmup_steps_of_ratio(double ratio, int64_t total_steps) {
  return static_cast<int64_t>(std::ceil(ratio * static_cast<double>(total_steps)));
}

}  // namespace nibble
