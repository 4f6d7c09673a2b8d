#include "nibble/parallel/plan/machine_time.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/parallel/pipeline/schedule_time.h"
#include "nibble/parallel/plan/work.h"

namespace nibble {

namespace {

constexpr double kFloat = 4;

/// Seconds that one rank of a stage is busy.
struct StageSeconds {
  double forward = 0, backward = 0;                    ///< of one microbatch, computing
  double forward_exchange = 0, backward_exchange = 0;  ///< exchanges within it
  double once = 0, once_exchange = 0;                  ///< sums over ranks and update, once a step
  double block = 0, block_exchange = 0;                ///< a step's share of a block of answers
  double stream = 0;                                   ///< of what passes from one stage to the next
};

// An exchange beside layers; those of tensor parallelism within them are in the seconds of layers.
double exchange_seconds(const StepCost& cost, const Exchange& of, const StepCost::Amount& amount, const MeshShape& mesh,
                        const MachineSpeed& speed) {
  if (of.axis == MeshAxis::tensor && of.part != StepPart::between) return 0;
  if (of.kind == CommKind::send) return 2 * speed.pass_on.seconds(amount.bytes, amount.messages);  // and gets as much
  const GroupExchanges& among = speed.among(of.ranks(mesh));
  Exchange other = of;  // a sum scatters and gathers
  other.kind = of.kind == CommKind::gather ? CommKind::scatter : CommKind::gather;
  const bool sum = cost.exchanges.contains(other);
  if (sum && of.kind == CommKind::gather) return 0;
  const ByteCost& line = sum ? among.sum : of.kind == CommKind::gather ? among.gather : among.reduce;
  return line.seconds(amount.bytes, amount.messages);
}

StageSeconds stage_seconds(const PlanJob& job, const PlanLayout& layout, const StageMemory& stage,
                           const MachineSpeed& speed) {
  const PartSeconds& parts =
      (layout.offload && !speed.offloaded.empty() ? speed.offloaded : speed.parts).at(layout.mesh.tensor);
  StageSeconds result;
  if (stage.layers.begin == 0) {
    result.forward += parts.embed;
    if (job.model.group(-1).trained > 0) result.backward += parts.embed_backward;
  }
  const int64_t lowest = lowest_with_backward(job.model, stage.layers);
  for (int64_t l = stage.layers.begin; l < stage.layers.end; ++l) {
    const auto at = static_cast<size_t>(l);
    const bool again = l >= lowest && layout.recomputes(l);
    result.forward += again ? parts.forward_recompute[at] : parts.forward[at];
    if (l >= lowest) result.backward += again ? parts.backward_recompute[at] : parts.backward[at];
  }
  if (stage.layers.end == job.model.config.layers) result.forward += parts.head;

  const auto values = [&](const StepCost& cost) {
    return cost.zeroed / kFloat * parts.zero_grad + cost.copied / (2 * kFloat) * parts.accumulate;
  };
  const StepCosts& costs = stage.costs;
  if (job.objective.type != ObjectiveType::sft) {  // passes beside those that gradients need, and blocks of answers
    result.forward += parts.operation * objective_flops(job, layout, stage);
    double drawing = parts.operation * costs.draw_flops;
    for (int64_t l = stage.layers.begin; l < stage.layers.end && !parts.draw.empty(); ++l) {
      drawing += costs.draw_passes * parts.draw[static_cast<size_t>(l)];
    }
    if (stage.layers.end == job.model.config.layers) drawing += costs.draw_passes * parts.draw_once;
    result.block = (drawing + parts.operation * costs.judge_flops) / static_cast<double>(job.block.steps);
  }
  result.backward += values(costs.pass);
  result.once += values(costs.once) + costs.updated * parts.update;
  for (const auto& [exchange, amount] : costs.pass.exchanges) {
    if (exchange.kind == CommKind::send) {  // the schedule has it
      result.stream = std::max(result.stream, speed.pass_on.seconds(amount.bytes / amount.messages));
      continue;
    }
    (exchange.part == StepPart::forward ? result.forward_exchange : result.backward_exchange) +=
        exchange_seconds(costs.pass, exchange, amount, layout.mesh, speed);
  }
  for (const auto& [exchange, amount] : costs.once.exchanges) {
    result.once_exchange += exchange_seconds(costs.once, exchange, amount, layout.mesh, speed);
  }
  for (const auto& [exchange, amount] : costs.block.exchanges) {
    result.block_exchange += exchange_seconds(costs.block, exchange, amount, layout.mesh, speed);
  }
  return result;
}

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

StepTime step_time_here(const PlanJob& job, const PlanLayout& layout, const MemoryPlan& plan,
                        const MachineSpeed& speed) {
  NIBBLE_CHECK(speed.parts.contains(layout.mesh.tensor), "this tensor degree was measured");
  const int64_t ranks_of_stage = layout.mesh.data() * layout.mesh.tensor;
  const auto crowd = [&](int64_t at_work) {
    return std::max(1.0, static_cast<double>(at_work * ranks_of_stage) * speed.threads / speed.cores);
  };
  const int64_t microbatches = microbatches_of_rank(job, layout);
  const double everyone = crowd(layout.mesh.pipeline), passes = static_cast<double>(microbatches);

  std::vector<StagePasses> passes_of;
  double computing = 0, exchanging = 0, once = 0, block = 0, stream = 0;
  for (const StageMemory& stage : plan.stages) {
    const StageSeconds of = stage_seconds(job, layout, stage, speed);
    const double of_block = of.block * crowd(1);  // stages draw one after another
    computing = std::max(computing, everyone * ((of.forward + of.backward) * passes + of.once) + of_block);
    exchanging = std::max(exchanging,
                          (of.forward_exchange + of.backward_exchange) * passes + of.once_exchange + of.block_exchange);
    once = std::max(once, of.once * everyone + of.once_exchange);
    block += of_block + of.block_exchange;
    stream = std::max(stream, of.stream);
    // Exchanges were measured with all ranks at it, and are run below among as many as there are.
    passes_of.push_back({of.forward + of.forward_exchange / everyone, of.backward + of.backward_exchange / everyone});
  }
  const ScheduleTime played = schedule_time(layout.schedule, passes_of, microbatches,
                                            layout.in_flight > 0 ? layout.in_flight : microbatches, stream, crowd);
  StepTime time;
  time.seconds = played.seconds + once + block;
  time.computing = std::min(computing, time.seconds);
  time.communicating = std::min(exchanging, time.seconds - time.computing);
  time.waiting = time.seconds - time.computing - time.communicating;
  if (layout.offload && !speed.offloaded.empty()) {
    PlanLayout kept = layout;
    kept.offload = false;
    time.spilling = std::max(0.0, time.seconds - step_time_here(job, kept, plan, speed).seconds);
    time.computing = std::max(0.0, time.computing - time.spilling);
  }
  time.tokens_per_second = static_cast<double>(job.tokens * job.accumulate) / time.seconds;
  return time;
}

}  // namespace nibble
