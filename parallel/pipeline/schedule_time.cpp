#include "nibble/parallel/pipeline/schedule_time.h"

#include <algorithm>
#include <limits>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kDone = 1e-9;  // less than that is left of an action that is done

class SimulatedStages {
 public:
  SimulatedStages(std::span<const StagePasses> passes, double arrives, const std::function<double(int64_t)>& crowd)
      : passes_(passes), arrives_(arrives), crowd_(crowd) {}

  ScheduleTime run(PipelineSchedule schedule, int64_t count, int64_t in_flight) {
    const int number = static_cast<int>(passes_.size());
    for (int s = 0; s < number; ++s) {
      // A single stage has nobody to keep busy.
      const PipelineSchedule of = number == 1 ? PipelineSchedule::naive : schedule;
      actions_.push_back(pipeline_actions(of, number, s, count, std::max<int64_t>(in_flight, 1)));
    }
    const std::vector<double> not_yet(static_cast<size_t>(count), kNever);
    forward_at_.assign(passes_.size(), not_yet);
    backward_at_.assign(passes_.size(), not_yet);
    next_.assign(passes_.size(), 0);
    left_.assign(passes_.size(), 0);
    ended_.assign(passes_.size(), 0);
    worked_.assign(passes_.size(), 0);
    ScheduleTime time{.seconds = play(), .waiting = {}};
    for (size_t s = 0; s < passes_.size(); ++s) {
      time.waiting.push_back(ended_[s] > 0 ? std::max(0.0, 1 - worked_[s] / ended_[s]) : 0);
    }
    return time;
  }

 private:
  // Until all are done: from one moment at which something ends or arrives to the next.
  double play() {
    double now = 0;
    for (;;) {
      std::vector<size_t> at_work;
      double soonest = kNever;
      for (size_t s = 0; s < passes_.size(); ++s) {
        const double from = ready_at(s);
        if (from > now) {
          soonest = std::min(soonest, from);
          continue;
        }
        if (left_[s] == 0) left_[s] = work(s);
        at_work.push_back(s);
      }
      if (at_work.empty() && soonest == kNever) return now;
      const double slower = crowd_ ? crowd_(static_cast<int64_t>(at_work.size())) : 1;
      for (const size_t s : at_work) soonest = std::min(soonest, now + left_[s] * slower);
      for (const size_t s : at_work) {
        left_[s] -= (soonest - now) / slower;
        worked_[s] += soonest - now;
      }
      now = soonest;
      for (const size_t s : at_work) {
        if (left_[s] <= kDone) finish(s, now);
      }
    }
  }

  double work(size_t s) const {
    return std::max(actions_[s][next_[s]].forward ? passes_[s].forward : passes_[s].backward, 2 * kDone);
  }

  // When the next action of a stage may begin; never while that is not known, or when there is none.
  double ready_at(size_t s) const {
    if (next_[s] == actions_[s].size()) return kNever;
    const PipelineAction& action = actions_[s][next_[s]];
    const auto m = static_cast<size_t>(action.microbatch);
    if (action.forward ? s == 0 : s + 1 == passes_.size()) return 0;
    return (action.forward ? forward_at_[s - 1][m] : backward_at_[s + 1][m]) + arrives_;
  }

  void finish(size_t s, double now) {
    const PipelineAction& action = actions_[s][next_[s]++];
    (action.forward ? forward_at_ : backward_at_)[s][static_cast<size_t>(action.microbatch)] = now;
    left_[s] = 0;
    ended_[s] = now;
  }

  std::span<const StagePasses> passes_;
  double arrives_;
  const std::function<double(int64_t)>& crowd_;
  std::vector<std::vector<PipelineAction>> actions_;
  std::vector<std::vector<double>> forward_at_, backward_at_;  // [stage][microbatch] when they were done
  std::vector<size_t> next_;
  std::vector<double> left_, ended_, worked_;
};

}  // namespace

ScheduleTime schedule_time(PipelineSchedule schedule, std::span<const StagePasses> stages, int64_t count,
                           int64_t in_flight, double arrives, const std::function<double(int64_t)>& crowd) {
  NIBBLE_CHECK(!stages.empty(), "a schedule of stages");
  return SimulatedStages(stages, arrives, crowd).run(schedule, count, in_flight);
}

}  // namespace nibble
