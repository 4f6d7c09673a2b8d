#pragma once
// In which order a pipeline stage computes its microbatches, and which layers it has. The learning rate's schedule is
// core/train/schedule.h.

#include <cstdint>
#include <vector>

namespace nibble {

enum class PipelineSchedule : uint8_t {
  naive,        ///< one microbatch at a time through all stages
  gpipe,        ///< all forward passes, then all backward passes (Huang et al. 2019)
  one_f_one_b,  ///< a backward pass as soon as there is one: fewer microbatches are kept (Narayanan et al. 2021)
};

struct PipelineAction {
  bool forward = true;
  int64_t microbatch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// What stage `stage` of `stages` does, in order, for `count` microbatches of which at most `in_flight` are between
/// their first forward and their last backward pass. Backward passes come in the order of the microbatches.
std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, int stages, int stage, int64_t count,
                                             int64_t in_flight);

/// Share of the time a stage waits when all stages and passes take equally long.
double predicted_bubble(PipelineSchedule schedule, int stages, int64_t count, int64_t in_flight);

}  // namespace nibble
