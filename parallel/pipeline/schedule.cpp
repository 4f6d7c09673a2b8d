#include "nibble/parallel/pipeline/schedule.h"

#include <algorithm>

#include "nibble/core/base/error.h"

namespace nibble {

std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, int stages, int stage, int64_t count,
                                             int64_t in_flight) {
  NIBBLE_CHECK(in_flight >= 1, "microbatches in flight");
  if (schedule == PipelineSchedule::naive) in_flight = 1;
  std::vector<PipelineAction> actions;
  for (int64_t begin = 0; begin < count; begin += in_flight) {
    const int64_t end = std::min(count, begin + in_flight);
    const bool alternate = schedule == PipelineSchedule::one_f_one_b;
    int64_t forward = begin, backward = begin;
    const int64_t ahead = alternate ? std::min<int64_t>(end, begin + stages - 1 - stage) : end;
    while (forward < ahead) actions.push_back({true, forward++});
    while (backward < end) {
      if (forward < end) actions.push_back({true, forward++});
      actions.push_back({false, backward++});
    }
  }
  return actions;
}

double predicted_bubble(PipelineSchedule schedule, int stages, int64_t count, int64_t in_flight) {
  if (count == 0) return 0;
  if (schedule == PipelineSchedule::naive) in_flight = 1;
  double used = 0, slots = 0;  // one slot: a microbatch on a stage
  for (int64_t begin = 0; begin < count; begin += in_flight) {
    const double here = static_cast<double>(std::min(count - begin, in_flight));
    used += here;
    slots += here + stages - 1;
  }
  return 1 - used / slots;
}

}  // namespace nibble
