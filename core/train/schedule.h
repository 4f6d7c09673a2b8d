#pragma once
// Learning rate schedules, with the semantics of Hugging Face Transformers' get_constant_schedule_with_warmup,
// get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup and get_cosine_with_min_lr_schedule_with_warmup.
// The order of a pipeline's work is another schedule: parallel/pipeline/schedule.h.

#include <cstdint>
#include <string_view>

namespace nibble {

enum class ScheduleKind : uint8_t { constant, linear, cosine };

/// Learning rate as a function of the update, W = warmup_steps, N = total_steps, k = updates done before (0 for the
/// first update):
///   k < W:      lr * k / W                                    (so the first of W > 0 warm-up updates has rate 0)
///   constant:   lr
///   linear:     min_lr + (lr - min_lr) * max(0, (N - k) / max(1, N - W))
///   cosine:     min_lr + (lr - min_lr) * (1 + cos(pi * min(1, (k - W) / max(1, N - W)))) / 2
/// min_lr is the rate the decay ends at (after N updates); the constant schedule ignores it.
struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 2e-4;
  double min_lr = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  double lr_at(int64_t updates_done) const;
};

/// Warm-up updates for a share of `total_steps`: rounded up, as Transformers' TrainingArguments.warmup_ratio.
int64_t warmup_steps_of_ratio(double ratio, int64_t total_steps);

}  // namespace nibble
