#pragma once
// How long a step takes on stages that are not equal: the schedule played through.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "nibble/parallel/pipeline/schedule.h"

namespace nibble {

/// Seconds that a stage works for one microbatch.
struct StagePasses {
  double forward = 0;
  double backward = 0;  ///< with what follows before its next pass
};

struct ScheduleTime {
  double seconds = 0;           ///< until the last stage is done
  std::vector<double> waiting;  ///< [stages] until its own last pass is done, share of the time that it waits
};

/// `count` microbatches, of which at most `in_flight` are between their passes. Each stage does its actions in order;
/// an action begins when what it needs has arrived, `arrives` seconds after the pass that made it. Stages at work at
/// the same time take crowd(how many) times as long; null: they do not disturb each other.
ScheduleTime schedule_time(PipelineSchedule schedule, std::span<const StagePasses> stages, int64_t count,
                           int64_t in_flight, double arrives, const std::function<double(int64_t)>& crowd = nullptr);

}  // namespace nibble
