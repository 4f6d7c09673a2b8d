#include "nibble/parallel/plan/machine_time.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr double kFloat = 4;

/// Seconds that one rank of a stage is busy.
struct StageSeconds {
  double forward = 0, backward = 0;                    ///< of one microbatch, computing
  double forward_exchange = 0, backward_exchange = 0;  ///< exchanges within it
  double after_backward = 0;                           ///< the microbatch's gradients join those before
  double once = 0, once_exchange = 0;                  ///< sums over ranks and update, once a step
};

/// What every stage of a layout does in a step.
class Stages {
 public:
  Stages(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& begins, const MachineSpeed& speed)
      : job_(job),
        layout_(layout),
        begins_(begins),
        speed_(speed),
        seconds_(speed.parts.at(layout.tensor)),
        model_(tensor_part(job.model, layout.tensor)),
        microbatches_(microbatches_of_rank(job, layout)) {
    const bool sharded = layout.mesh.shard > 1;
    cut_ = sharded && (job.everything || layout.shard_adapters);
    gathers_ = sharded && layout.zero >= 3;
    rounds_ = cut_ && layout.zero >= 2 &&
              (job.gradient_sum == GradientSum::running || std::has_single_bit(static_cast<uint64_t>(microbatches_)));
  }

  StageSeconds of(size_t stage) const {
    StageSeconds made;
    add_passes(stage, made);
    add_exchanges_of_passes(stage, made);
    add_gradients(stage, made);
    return made;
  }

 private:
  int64_t layers() const { return model_.config.layers; }
  bool first(size_t stage) const { return stage == 0; }
  bool last(size_t stage) const { return stage + 2 == begins_.size(); }

  template <typename Call>
  void each_group(size_t stage, const Call& call) const {
    if (first(stage)) call(int64_t{-1});
    for (int64_t l = begins_[stage]; l < begins_[stage + 1]; ++l) call(l);
    if (last(stage)) call(layers());
  }

  double values(size_t stage) const {
    double count = 0;
    each_group(stage, [&](int64_t group) { count += static_cast<double>(model_.group(group).trained_values()); });
    if (tied_apart() && last(stage)) count += tied_values();
    return count;
  }
  // A tied head on a stage of its own trains a copy of the embedding.
  bool tied_apart() const { return begins_.size() > 2 && model_.config.tied_head && job_.everything; }
  double tied_values() const { return static_cast<double>(model_.input.tables.front().size()); }

  void add_passes(size_t stage, StageSeconds& made) const {
    const int64_t lowest = lowest_with_backward(model_, {begins_[stage], begins_[stage + 1]});
    if (first(stage)) {
      made.forward += seconds_.embed;
      if (model_.input.has_trainable()) made.backward += seconds_.embed_backward;
    }
    for (int64_t l = begins_[stage]; l < begins_[stage + 1]; ++l) {
      const auto at = static_cast<size_t>(l);
      made.forward += seconds_.forward[at];
      if (l >= lowest) made.backward += layout_.recomputes(l) ? seconds_.backward_again[at] : seconds_.backward[at];
    }
    if (last(stage)) made.forward += seconds_.head;
  }

  void add_exchanges_of_passes(size_t stage, StageSeconds& made) const {
    if (gathers_) {
      const ByteCost& gather = speed_.among(layout_.mesh.shard).gather;
      each_group(stage, [&](int64_t group) {
        const PlannedGroup& of = model_.group(group);
        const double bytes = (job_.everything ? 0 : static_cast<double>(of.frozen_bytes())) +
                             (cut_ ? static_cast<double>(of.trained_values()) * kFloat : 0);
        const double once = gather.seconds(bytes);
        const bool again = group < layers() && (layout_.reshard_after_forward || layout_.mesh.pipeline > 1);
        made.forward_exchange += once;
        if (again && (group >= 0 || of.has_trainable())) made.backward_exchange += once;
      });
    }
    if (!rounds_) return;
    each_group(stage, [&](int64_t group) {
      const double bytes = static_cast<double>(model_.group(group).trained_values()) * kFloat;
      if (bytes == 0) return;
      made.backward_exchange += speed_.among(layout_.mesh.shard).reduce.seconds(bytes);
      made.backward += bytes / kFloat * seconds_.zero;  // whole gradients come and go with their block
      if (layout_.mesh.replicate > 1 && job_.gradient_sum == GradientSum::tree) {
        made.backward_exchange += copies_seconds(bytes);
      }
    });
  }

  // The shards' sum over the copies.
  double copies_seconds(double bytes) const {
    return speed_.among(layout_.mesh.replicate).sum.seconds(bytes / static_cast<double>(layout_.mesh.shard));
  }

  // Passes over gradients, their sums over ranks, the update.
  void add_gradients(size_t stage, StageSeconds& made) const {
    const double all = values(stage), shard = static_cast<double>(cut_ ? layout_.mesh.shard : 1);
    const double summed = rounds_ ? all / shard : all, passes = static_cast<double>(microbatches_);
    if (job_.gradient_sum == GradientSum::tree) {
      made.after_backward = summed * (seconds_.zero + seconds_.add * (passes - 1) / passes);
    } else {
      made.once += summed * seconds_.zero;
    }
    if (cut_ && !rounds_) made.once += (all + all / shard) * seconds_.zero;
    made.once += all / shard * seconds_.update;

    const double bytes = all * kFloat;
    const int64_t data = layout_.mesh.data();
    if (!cut_ && data > 1) made.once_exchange += speed_.among(data).sum.seconds(bytes);
    if (cut_ && !rounds_) {
      made.once_exchange += speed_.among(layout_.mesh.shard).reduce.seconds(bytes);
      if (layout_.mesh.replicate > 1) made.once_exchange += copies_seconds(bytes);
    }
    if (rounds_ && layout_.mesh.replicate > 1 && job_.gradient_sum == GradientSum::running) {
      made.once_exchange += copies_seconds(bytes);
    }
    if (cut_ && layout_.zero < 3) {
      double groups = 0;
      each_group(stage, [&](int64_t) { ++groups; });
      made.once_exchange += speed_.among(layout_.mesh.shard).gather.seconds(bytes, groups);
    }
    if (tied_apart() && (first(stage) || last(stage))) {
      const double own = tied_values() / (cut_ ? shard : 1);
      made.once_exchange += 2 * speed_.pass_on.seconds(own * kFloat);
      made.once += own * seconds_.add;
    }
  }

  const PlanJob& job_;
  const PlanLayout& layout_;
  const std::vector<int64_t>& begins_;
  const MachineSpeed& speed_;
  const PartSeconds& seconds_;
  const PlannedModel model_;
  const int64_t microbatches_;
  bool cut_ = false, gathers_ = false, rounds_ = false;
};

/// Stages at work: each does its actions in order, an action begins when what it needs has arrived, and those that run
/// at the same time share the cores.
class Schedule {
 public:
  Schedule(const PlanLayout& layout, const std::vector<StageSeconds>& stages, int64_t microbatches, double arrives,
           const std::function<double(int64_t)>& crowd)
      : stages_(stages), arrives_(arrives), crowd_(crowd) {
    const int64_t in_flight = layout.in_flight > 0 ? layout.in_flight : microbatches;
    const int number = static_cast<int>(stages.size());
    for (int s = 0; s < number; ++s) {
      actions_.push_back(
          number == 1 ? alone(microbatches)
                      : pipeline_actions(layout.schedule, number, s, microbatches, std::max<int64_t>(in_flight, 1)));
    }
    const std::vector<double> never(static_cast<size_t>(microbatches), -1);
    forward_at_.assign(stages.size(), never);
    backward_at_.assign(stages.size(), never);
    next_.assign(stages.size(), 0);
    left_.assign(stages.size(), 0);
  }

  /// Seconds until the last stage is done.
  double run() {
    double now = 0;
    for (;;) {
      std::vector<size_t> at_work;
      double soonest = std::numeric_limits<double>::infinity();
      for (size_t s = 0; s < stages_.size(); ++s) {
        const double from = ready_at(s);
        if (from > now) {
          soonest = std::min(soonest, from);
          continue;
        }
        if (left_[s] == 0) left_[s] = work(s);
        at_work.push_back(s);
      }
      if (at_work.empty() && soonest == std::numeric_limits<double>::infinity()) return now;
      const double slower = crowd_(static_cast<int64_t>(at_work.size()));
      for (const size_t s : at_work) soonest = std::min(soonest, now + left_[s] * slower);
      for (const size_t s : at_work) left_[s] -= (soonest - now) / slower;
      now = soonest;
      for (const size_t s : at_work) {
        if (left_[s] > 1e-9) continue;
        finish(s, now);
      }
    }
  }

 private:
  static std::vector<PipelineAction> alone(int64_t microbatches) {
    std::vector<PipelineAction> actions;
    for (int64_t m = 0; m < microbatches; ++m) {
      actions.push_back({true, m});
      actions.push_back({false, m});
    }
    return actions;
  }

  double work(size_t s) const {
    const StageSeconds& of = stages_[s];
    const double seconds = actions_[s][next_[s]].forward ? of.forward + of.forward_exchange
                                                         : of.backward + of.backward_exchange + of.after_backward;
    return std::max(seconds, 2e-9);
  }

  // When the next action of a stage may begin; infinity while that is not known, or when there is none.
  double ready_at(size_t s) const {
    if (next_[s] == actions_[s].size()) return std::numeric_limits<double>::infinity();
    const PipelineAction& action = actions_[s][next_[s]];
    const auto m = static_cast<size_t>(action.microbatch);
    const bool end = action.forward ? s == 0 : s + 1 == stages_.size();
    if (end) return 0;
    const double sent = action.forward ? forward_at_[s - 1][m] : backward_at_[s + 1][m];
    return sent < 0 ? std::numeric_limits<double>::infinity() : sent + arrives_;
  }

  void finish(size_t s, double now) {
    const PipelineAction& action = actions_[s][next_[s]++];
    (action.forward ? forward_at_ : backward_at_)[s][static_cast<size_t>(action.microbatch)] = now;
    left_[s] = 0;
  }

  const std::vector<StageSeconds>& stages_;
  double arrives_;
  std::function<double(int64_t)> crowd_;
  std::vector<std::vector<PipelineAction>> actions_;
  std::vector<std::vector<double>> forward_at_, backward_at_;  // when they were done; -1: not yet
  std::vector<size_t> next_;
  std::vector<double> left_;
};

}  // namespace

double ByteCost::seconds(double bytes) const {
  if (points_.empty() || bytes <= 0) return 0;
  if (bytes <= points_.front().first) return points_.front().second;
  for (size_t i = 1; i < points_.size(); ++i) {
    const auto& [low, low_seconds] = points_[i - 1];
    const auto& [high, high_seconds] = points_[i];
    if (bytes <= high) return low_seconds + (high_seconds - low_seconds) * (bytes - low) / (high - low);
  }
  return points_.back().second * bytes / points_.back().first;
}

const GroupExchanges& MachineSpeed::among(int64_t ranks) const {
  static const GroupExchanges none;
  if (ranks <= 1 || exchange.empty()) return none;
  const auto found = exchange.lower_bound(ranks);
  return found == exchange.end() ? exchange.rbegin()->second : found->second;
}

StepTime step_time_here(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages,
                        const MachineSpeed& speed) {
  NIBBLE_CHECK(speed.parts.contains(layout.tensor), "this tensor degree was measured");
  const int64_t ranks_of_stage = layout.mesh.data() * layout.tensor;
  const auto crowd = [&](int64_t at_work) {
    return std::max(1.0, static_cast<double>(at_work * ranks_of_stage) * speed.threads / speed.cores);
  };
  const int64_t count = layout.mesh.pipeline, microbatches = microbatches_of_rank(job, layout);
  const double everyone = crowd(count);

  const Stages parts(job, layout, stages, speed);
  std::vector<StageSeconds> seconds;
  double computing = 0, exchanging = 0, once = 0;
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    StageSeconds of = parts.of(s);
    const double passes = static_cast<double>(microbatches);
    computing = std::max(computing, everyone * ((of.forward + of.backward + of.after_backward) * passes + of.once));
    exchanging = std::max(exchanging, (of.forward_exchange + of.backward_exchange) * passes + of.once_exchange);
    once = std::max(once, of.once * everyone + of.once_exchange);
    // Exchanges were measured with all ranks at it, and are run below among as many as there are.
    of.forward_exchange /= everyone;
    of.backward_exchange /= everyone;
    seconds.push_back(of);
  }
  const double stream = static_cast<double>(job.tokens * job.model.config.width) * kFloat;
  Schedule schedule(layout, seconds, microbatches, count > 1 ? speed.pass_on.seconds(stream) : 0, crowd);
  StepTime time;
  time.seconds = schedule.run() + once;
  time.computing = std::min(computing, time.seconds);
  time.communicating = std::min(exchanging, time.seconds - time.computing);
  time.waiting = time.seconds - time.computing - time.communicating;
  time.tokens_per_second = static_cast<double>(job.tokens * job.accumulate) / time.seconds;
  return time;
}

}  // namespace nibble
