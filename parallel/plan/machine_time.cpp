#include "nibble/parallel/plan/machine_time.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/parallel/pipeline/schedule_time.h"

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
        seconds_((layout.offload && !speed.filed.empty() ? speed.filed : speed.parts).at(layout.tensor)),
        model_(tensor_part(job.model, layout.tensor)),
        microbatches_(microbatches_of_rank(job, layout)) {
    const bool sharded = layout.mesh.shard > 1;
    cut_ = sharded && (job.everything || layout.shard_adapters);
    gathers_ = sharded && layout.zero >= 3;
    rounds_ = sums_in_rounds(job, layout);
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
      const bool again = l >= lowest && layout_.recomputes(l);
      made.forward += again ? seconds_.forward_again[at] : seconds_.forward[at];
      if (l >= lowest) made.backward += again ? seconds_.backward_again[at] : seconds_.backward[at];
    }
    if (last(stage)) made.forward += seconds_.head;
  }

  double gathered_bytes(const PlannedGroup& of) const {
    return (job_.everything ? 0 : static_cast<double>(of.frozen_bytes())) +
           (cut_ ? static_cast<double>(of.trained_values()) * kFloat : 0);
  }

  void add_exchanges_of_passes(size_t stage, StageSeconds& made) const {
    if (gathers_) {
      const ByteCost& gather = speed_.among(layout_.mesh.shard).gather;
      each_group(stage, [&](int64_t group) {
        const PlannedGroup& of = model_.group(group);
        const double once = gather.seconds(gathered_bytes(of));
        const bool again = group < layers() && (layout_.reshard_after_forward || layout_.mesh.pipeline > 1);
        made.forward_exchange += once;
        if (again && (group >= 0 || of.has_trainable())) made.backward_exchange += once;
      });
      // A tied head needs the embedding once more.
      const bool again = layout_.reshard_after_forward || layout_.mesh.pipeline > 1;
      if (last(stage) && again && model_.config.tied_head) {
        made.forward_exchange += gather.seconds(gathered_bytes(model_.input));
      }
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
  std::vector<StagePasses> passes_of;
  double computing = 0, exchanging = 0, once = 0;
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    const StageSeconds of = parts.of(s);
    const double passes = static_cast<double>(microbatches);
    computing = std::max(computing, everyone * ((of.forward + of.backward + of.after_backward) * passes + of.once));
    exchanging = std::max(exchanging, (of.forward_exchange + of.backward_exchange) * passes + of.once_exchange);
    once = std::max(once, of.once * everyone + of.once_exchange);
    // Exchanges were measured with all ranks at it, and are run below among as many as there are.
    passes_of.push_back({of.forward + of.forward_exchange / everyone,
                         of.backward + of.after_backward + of.backward_exchange / everyone});
  }
  const double stream = static_cast<double>(job.tokens * job.model.config.width) * kFloat;
  const ScheduleTime played =
      schedule_time(layout.schedule, passes_of, microbatches, layout.in_flight > 0 ? layout.in_flight : microbatches,
                    count > 1 ? speed.pass_on.seconds(stream) : 0, crowd);
  StepTime time;
  time.seconds = played.seconds + once;
  time.computing = std::min(computing, time.seconds);
  time.communicating = std::min(exchanging, time.seconds - time.computing);
  time.waiting = time.seconds - time.computing - time.communicating;
  if (layout.offload && !speed.filed.empty()) {
    PlanLayout kept = layout;
    kept.offload = false;
    time.spilling = std::max(0.0, time.seconds - step_time_here(job, kept, stages, speed).seconds);
    time.computing = std::max(0.0, time.computing - time.spilling);
  }
  time.tokens_per_second = static_cast<double>(job.tokens * job.accumulate) / time.seconds;
  return time;
}

}  // namespace nibble
