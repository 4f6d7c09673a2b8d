#include "nibble/parallel/plan/step_time.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/parallel/plan/work.h"

namespace nibble {

namespace {

// Seconds of a ring over neighbours of which `stride` share every place: it crosses a node's border once, and all rings
// of the node go through the same wire.
double ring_seconds(const Exchange& of, const StepCost::Amount& amount, const MeshShape& mesh, const Cluster& cluster) {
  const auto ranks = static_cast<double>(of.ranks(mesh)), tensor = static_cast<double>(mesh.tensor);
  const double stride = of.axis == MeshAxis::tensor            ? 1
                        : of.axis == MeshAxis::replicate       ? tensor * static_cast<double>(mesh.shard)
                        : of.axis == MeshAxis::expert_replicas ? tensor * static_cast<double>(mesh.experts)
                                                               : tensor;
  const double rings = std::min(stride, cluster.ranks_per_node);  // side by side in a node
  const bool inside = ranks * stride <= cluster.ranks_per_node;
  const double moved = of.sent(amount.bytes, mesh);
  const double seconds = inside ? moved / cluster.link_bandwidth : moved * rings / cluster.node_bandwidth;
  return seconds + amount.messages * (ranks - 1) * cluster.latency;
}

// What a stage exchanges in a step.
struct ExchangeSeconds {
  double in_the_way = 0;  // sums of a layer's sublayers stand in the way of the next product
  double beside = 0;      // of computing
};

ExchangeSeconds exchange_seconds(const StepCost& step, const PlanJob& job, const MeshShape& mesh,
                                 const Cluster& cluster, const WireFormat& wire) {
  constexpr double kF32Bytes = 4;
  const bool stages_inside = static_cast<double>(mesh.ranks()) <= cluster.ranks_per_node;
  const double between_stages =
      stages_inside ? cluster.link_bandwidth : cluster.node_bandwidth / cluster.ranks_per_node;
  ExchangeSeconds seconds;
  for (auto [exchange, amount] : step.exchanges) {
    const bool stream = exchange.axis == MeshAxis::tensor || exchange.axis == MeshAxis::pipeline;
    Exchange scatter = exchange;
    scatter.kind = CommKind::scatter;
    const bool sum = step.exchanges.contains(scatter);
    if (stream) amount.bytes *= wire.stream_bytes / kF32Bytes;
    if (!stream && !sum && job.everything) amount.bytes *= wire.weight_bytes / kF32Bytes;
    if (exchange.kind == CommKind::send) {
      seconds.beside += amount.bytes * wire.interleave / between_stages;
    } else if (exchange.axis == MeshAxis::tensor || exchange.axis == MeshAxis::experts) {
      seconds.in_the_way += ring_seconds(exchange, amount, mesh, cluster);
    } else {
      seconds.beside += (sum ? cluster.reduction : 1) * ring_seconds(exchange, amount, mesh, cluster);
    }
  }
  return seconds;
}

// Of what is computed of a block of answers before its steps, the share of one step.
double block_seconds(const PlanJob& job, const PlanLayout& layout, const StageMemory& stage, const PassSeconds& pass) {
  double bytes = 0;  // that a pass which draws reads
  for (int64_t l = stage.layers.begin; l < stage.layers.end; ++l) {
    const PlannedGroup& group = job.model.group(l);
    bytes += static_cast<double>(group.frozen_bytes + 4 * group.trained) / static_cast<double>(layout.mesh.tensor);
  }
  const StepCosts& costs = stage.costs;
  const double drawing = std::max(pass.operation * costs.draw_flops, pass.byte * bytes * costs.draw_passes);
  return (drawing + pass.operation * costs.judge_flops) / static_cast<double>(job.block.steps);
}

}  // namespace

double objective_flops(const PlanJob& job, const PlanLayout& layout, const StageMemory& stage) {
  if (job.objective.type == ObjectiveType::sft) return 0;
  const ModelWork& work = model_work(job, layout.mesh.tensor);
  double flops = stage.layers.end == job.model.config.layers ? work.head : 0;
  const int64_t lowest = lowest_with_backward(job.model, stage.layers);
  for (int64_t l = stage.layers.begin; l < stage.layers.end; ++l) {
    const LayerWork& layer = work.layers[static_cast<size_t>(l)];
    flops += layer.forward;
    if (l >= lowest) flops += layer.backward + (layout.recomputes(l) ? layer.recompute : 0);
  }
  return std::max(0.0, stage.costs.pass.flops - flops);
}

PassSeconds pass_seconds(const PlanJob& job, const PlanLayout& layout, const Cluster& cluster) {
  const double speed = cluster.flops * cluster.share(static_cast<double>(job.model.config.width));
  const ModelWork& work = model_work(job, layout.mesh.tensor);
  PassSeconds pass;
  for (int64_t l = 0; l < job.model.config.layers; ++l) {
    const LayerWork& of = work.layers[static_cast<size_t>(l)];
    pass.layer_forward.push_back(of.forward / speed);
    pass.layer_backward.push_back((of.backward + (layout.recomputes(l) ? of.recompute : 0)) / speed);
  }
  pass.head = work.head / speed;
  pass.operation = 1 / speed;
  if (cluster.memory_bandwidth > 0) {
    const double state = job.optimizer == OptimizerKind::sgd ? 0 : 16;
    pass.update = (12 + 4 + state) / cluster.memory_bandwidth;
    pass.byte = 1 / cluster.memory_bandwidth;
  }
  return pass;
}

std::vector<std::vector<int64_t>> stage_placements(const PlanJob& job, const PlanLayout& layout) {
  const int64_t layers = job.model.config.layers, stages = layout.mesh.pipeline;
  if (!layout.stages.empty()) {
    std::vector<int64_t> begins = {0};
    for (const int64_t count : layout.stages) begins.push_back(begins.back() + count);
    return {begins};
  }
  NIBBLE_CHECK(stages >= 1 && layers >= stages, "every stage has a layer");
  if (stages == 1) return {{0, layers}};
  const ModelWork& work = model_work(job, layout.mesh.tensor);
  std::vector<double> until = {0};
  for (int64_t l = 0; l < layers; ++l) {
    const LayerWork& of = work.layers[static_cast<size_t>(l)];
    until.push_back(until.back() + of.forward + of.backward + (layout.recomputes(l) ? of.recompute : 0));
  }
  // The last stage has the head: so many layers there, the others shared out evenly.
  std::vector<std::pair<double, std::vector<int64_t>>> found;
  for (int64_t last = layers - (stages - 1); last >= 1; --last) {
    std::vector<int64_t> begins;
    for (int64_t s = 0; s < stages; ++s) begins.push_back((layers - last) * s / (stages - 1));
    begins.push_back(layers);
    double slowest = 0;
    for (size_t s = 0; s + 1 < begins.size(); ++s) {
      const double head = s + 2 == begins.size() ? work.head : 0;
      slowest =
          std::max(slowest, until[static_cast<size_t>(begins[s + 1])] - until[static_cast<size_t>(begins[s])] + head);
    }
    found.emplace_back(slowest, std::move(begins));
  }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  std::vector<std::vector<int64_t>> placements;
  for (auto& [slowest, begins] : found) placements.push_back(std::move(begins));
  return placements;
}

Traffic traffic_of(const PlanJob& job, const PlanLayout& layout, const MemoryPlan& plan) {
  Traffic traffic;
  for (const StageMemory& stage : plan.stages) {
    Traffic own;
    const StepCost step = stage.costs.step(static_cast<double>(microbatches_of_rank(job, layout)));
    for (const auto& [exchange, amount] : step.exchanges) {
      own[exchange.operation] += exchange.sent(amount.bytes, layout.mesh);
    }
    for (const auto& [operation, bytes] : own) traffic[operation] = std::max(traffic[operation], bytes);
  }
  return traffic;
}

StepTime step_time(const PlanJob& job, const PlanLayout& layout, const MemoryPlan& plan, const PassSeconds& pass,
                   const Cluster& cluster, const WireFormat& wire) {
  const double passes = static_cast<double>(microbatches_of_rank(job, layout));
  const double bubble =
      predicted_bubble(layout.schedule, static_cast<int>(layout.mesh.pipeline), static_cast<int64_t>(passes),
                       layout.in_flight > 0 ? layout.in_flight : static_cast<int64_t>(passes));
  StepTime slowest;
  double block = 0;  // stages draw one after another
  for (const StageMemory& stage : plan.stages) {
    block += block_seconds(job, layout, stage, pass);
    double own = stage.layers.end == job.model.config.layers ? pass.head : 0;  // one microbatch
    own += pass.operation * objective_flops(job, layout, stage);
    for (int64_t l = stage.layers.begin; l < stage.layers.end; ++l) {
      own += pass.layer_forward[static_cast<size_t>(l)] + pass.layer_backward[static_cast<size_t>(l)];
    }
    const ExchangeSeconds exchange = exchange_seconds(stage.costs.step(passes), job, layout.mesh, cluster, wire);
    const double busy = own * passes + exchange.in_the_way, update = pass.update * stage.costs.updated;
    const double both = std::max(busy, exchange.beside) + cluster.overlap * std::min(busy, exchange.beside);
    const StepTime time{.seconds = both + update,
                        .computing = own * passes + update,
                        .communicating = both - own * passes,
                        .waiting = busy * bubble / (1 - bubble) / wire.interleave};
    if (time.seconds + time.waiting > slowest.seconds + slowest.waiting) slowest = time;
  }
  const double doublings = std::log2(static_cast<double>(layout.mesh.ranks()) / 128);
  slowest.seconds += slowest.waiting + block;
  slowest.computing += block;
  if (doublings > 0) slowest.seconds *= 1 + cluster.growth * doublings;
  slowest.tokens_per_second = static_cast<double>(job.tokens * job.accumulate) / slowest.seconds;
  return slowest;
}

void add_spill(StepTime& time, double bytes, const Cluster& cluster) {
  const double moving = 2 * bytes / cluster.disk_bandwidth, before = time.seconds;
  time.spilling = std::max(0.0, moving - time.computing);
  time.seconds += time.spilling;
  time.tokens_per_second *= before / time.seconds;
}

}  // namespace nibble
