#include "nibble/parallel/plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

// Bytes that each rank of a ring of `ranks` sends for one pass over `bytes` (a gather, or half of an all-reduce).
double ring_bytes(double bytes, double ranks) { return ranks > 1 ? bytes * (ranks - 1) / ranks : 0; }

// Seconds of a ring over `ranks` neighbours of which `stride` share every place: it crosses a node's border once, and
// all rings of the node go through the same wire.
double ring_seconds(double bytes, double ranks, double stride, double messages, const Cluster& cluster) {
  if (ranks <= 1 || bytes == 0) return 0;
  const double spans = ranks * stride;
  const double rings = std::min(stride, cluster.ranks_per_node);  // side by side in a node
  const bool inside = spans <= cluster.ranks_per_node;
  const double moved = ring_bytes(bytes, ranks);
  const double seconds = inside ? moved / cluster.link_bandwidth : moved * rings / cluster.node_bandwidth;
  return seconds + messages * (ranks - 1) * cluster.latency;
}

}  // namespace

GroupWork group_work(const PlanJob& job, int64_t group) {
  const PlannedModel& model = job.model;
  const PlannedGroup& of = model.group(group);
  GroupWork work;
  // A gradient of the input is needed where anything below is trained.
  bool below = false;
  for (int64_t l = -1; l < group && !below; ++l) below = model.group(l).has_trainable();
  const bool runs = below || of.has_trainable();
  const auto product = [&](double size, bool trained, double adapter) {
    work.forward += 2 * size + 2 * adapter;
    work.backward += (runs ? 2 * size : 0) + (trained ? 2 * size : 0) + 4 * adapter;
  };
  for (const PlannedLinear& linear : of.linears) {
    product(static_cast<double>(linear.size()), linear.trained,
            static_cast<double>(linear.r * (linear.in + linear.out)));
  }
  const DecoderConfig& config = model.config;
  if (group == config.layers && config.tied_head) {
    product(static_cast<double>(config.vocab_size * config.embedding_width), model.head_trained, 0);
    for (double* part : {&work.forward, &work.backward}) *part *= job.label_share;
  }
  if (group >= 0 && group < config.layers) {
    int64_t seen = job.document_length;
    const int64_t window = config.layer.empty() ? 0 : config.layer[static_cast<size_t>(group)].window;
    if (window > 0) seen = std::min(seen, 2 * window);
    const double scores = 2.0 * static_cast<double>(seen) * static_cast<double>(config.heads * config.head_size);
    work.forward += scores;  // two products over half of the keys
    if (runs) work.backward += 2.5 * scores;
  }
  return work;
}

PassSeconds pass_seconds(const PlanJob& job, const PlanLayout& layout, const Cluster& cluster) {
  const double speed =
      cluster.flops * cluster.share(static_cast<double>(job.model.config.width)) * static_cast<double>(layout.tensor);
  const double tokens = static_cast<double>(job.tokens);
  PassSeconds pass;
  for (int64_t l = 0; l < job.model.config.layers; ++l) {
    const GroupWork work = group_work(job, l);
    const double again = layout.recomputes(l) ? work.forward : 0;
    pass.layer_forward.push_back(tokens * work.forward / speed);
    pass.layer_backward.push_back(tokens * (work.backward + again) / speed);
  }
  const GroupWork head = group_work(job, job.model.config.layers);
  pass.head = tokens * (head.forward + head.backward) / speed;
  if (cluster.memory_bandwidth > 0) {
    const double state = job.optimizer == OptimizerKind::sgd ? 0 : 16;
    pass.update = static_cast<double>(job.model.trained_values()) * (12 + 4 + state) / cluster.memory_bandwidth;
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
  const auto work = [&](int64_t group) {
    const GroupWork of = group_work(job, group);
    const bool again = group < layers && layout.recomputes(group);
    return of.forward * (again ? 2 : 1) + of.backward;
  };
  std::vector<double> until = {0};
  for (int64_t l = 0; l < layers; ++l) until.push_back(until.back() + work(l));
  // The last stage has the head: so many layers there, the others shared out evenly.
  std::vector<std::pair<double, std::vector<int64_t>>> found;
  for (int64_t last = layers - (stages - 1); last >= 1; --last) {
    std::vector<int64_t> begins;
    for (int64_t s = 0; s < stages; ++s) begins.push_back((layers - last) * s / (stages - 1));
    begins.push_back(layers);
    double slowest = 0;
    for (size_t s = 0; s + 1 < begins.size(); ++s) {
      const double head = s + 2 == begins.size() ? work(layers) : 0;
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

Traffic step_traffic(const PlanJob& job, const PlanLayout& layout, const WireFormat& wire) {
  const PlannedModel cut_model = layout.tensor > 1 ? tensor_part(job.model, layout.tensor) : PlannedModel();
  const PlannedModel& part = layout.tensor > 1 ? cut_model : job.model;
  const double shard = static_cast<double>(layout.mesh.shard), replicate = static_cast<double>(layout.mesh.replicate);
  const double stages = static_cast<double>(layout.mesh.pipeline), tensor = static_cast<double>(layout.tensor);
  const double passes = static_cast<double>(microbatches_of_rank(job, layout));
  const bool cut = layout.mesh.shard > 1 && (job.everything || layout.shard_adapters);
  const double gradient_bytes = layout.wire_dtype == DType::f32 ? 4 : 2;
  double trained = 0, frozen = 0, layers_frozen = 0, layers_trained = 0;
  for (int64_t l = -1; l <= part.config.layers; ++l) {
    trained += static_cast<double>(part.group(l).trained_values());
    const double bytes = job.everything ? 0 : static_cast<double>(part.group(l).frozen_bytes());
    frozen += bytes;
    if (l < 0 || l == part.config.layers) continue;
    layers_frozen += bytes;
    layers_trained += static_cast<double>(part.group(l).trained_values());
  }
  Traffic traffic;
  // Layers are gathered forward and backward; the embedding before the forward pass (and where it is trained, or is the
  // head, once more), the head once.
  if (layout.mesh.shard > 1 && layout.zero >= 3) {
    const double again = layout.reshard_after_forward ? 2 : 1;
    const double outside_frozen = (frozen - layers_frozen) * (part.config.tied_head ? again : 1);
    const double outside_trained = (trained - layers_trained) * (part.config.tied_head ? again : 1);
    const double once = layout.reshard_after_forward ? passes : 1;
    traffic["gather weights"] =
        ring_bytes(once *
                       ((again * layers_frozen + outside_frozen) +
                        (cut ? wire.weight_bytes * (again * layers_trained + outside_trained) : 0)) /
                       stages,
                   shard);
  }
  const double values = trained / stages * gradient_bytes;
  if (cut) {
    const double times = layout.zero >= 2 && wire.reduce_every_pass ? passes : 1;
    traffic["reduce gradients"] = ring_bytes(values * times, shard);
    traffic["sum gradients"] = 2 * ring_bytes(values / shard, replicate);
    if (layout.zero < 3) traffic["share weights"] = ring_bytes(trained / stages * wire.weight_bytes, shard);
  } else {
    traffic["sum gradients"] = 2 * ring_bytes(values, shard * replicate);
  }
  const double stream = static_cast<double>(job.tokens * part.config.width) * wire.stream_bytes * passes;
  if (layout.mesh.pipeline > 1) traffic["activations"] = 2 * stream * wire.interleave;
  if (layout.tensor > 1) {
    // Two sums a layer forward, two backward, and where blocks are recomputed those forward that a later half or a
    // norm of the output needs (see Block::recompute).
    const BlockNames& names = part.config.names.block;
    const bool both = !names.post_mlp_norm.empty() || part.config.norm_place == NormPlace::sum;
    const double again = both ? 2 : part.config.parallel_residual && names.post_attention_norm.empty() ? 0 : 1;
    double sums = 0;
    for (int64_t l = 0; l < part.config.layers; ++l) sums += layout.recomputes(l) ? 4 + again : 4;
    traffic["sum activations"] = 2 * ring_bytes(stream * sums / stages, tensor);
  }
  std::erase_if(traffic, [](const auto& entry) { return entry.second == 0; });
  return traffic;
}

StepTime step_time(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages,
                   const PassSeconds& pass, const Cluster& cluster, const WireFormat& wire) {
  const Traffic traffic = step_traffic(job, layout, wire);
  const auto moved = [&](const char* operation) {
    const auto found = traffic.find(operation);
    return found == traffic.end() ? 0.0 : found->second;
  };
  const double tensor = static_cast<double>(layout.tensor), shard = static_cast<double>(layout.mesh.shard);
  const double replicate = static_cast<double>(layout.mesh.replicate);
  const double passes = static_cast<double>(microbatches_of_rank(job, layout));
  const double layers = static_cast<double>(job.model.config.layers) / static_cast<double>(layout.mesh.pipeline);
  const auto ring = [&](const char* operation, double ranks, double stride, double messages) {
    return ranks > 1 ? ring_seconds(moved(operation) * ranks / (ranks - 1), ranks, stride, messages, cluster) : 0;
  };

  double slowest = 0;  // one microbatch on the slowest stage
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    double here = s + 2 == stages.size() ? pass.head : 0;
    for (int64_t l = stages[s]; l < stages[s + 1]; ++l) {
      here += pass.layer_forward[static_cast<size_t>(l)] + pass.layer_backward[static_cast<size_t>(l)];
    }
    slowest = std::max(slowest, here);
  }
  // Sums of a layer's halves stand in the way of the next product.
  const double in_the_way = ring("sum activations", tensor, 1, 8 * layers * passes) / passes;
  const double each = slowest + in_the_way;
  const double bubble =
      predicted_bubble(layout.schedule, static_cast<int>(layout.mesh.pipeline), static_cast<int64_t>(passes),
                       layout.in_flight > 0 ? layout.in_flight : static_cast<int64_t>(passes));
  const double waiting = each * passes * bubble / (1 - bubble) / wire.interleave;
  const double sent = moved("activations");
  const bool stages_inside = static_cast<double>(layout.ranks()) <= cluster.ranks_per_node;
  const double stream =
      sent / (stages_inside ? cluster.link_bandwidth : cluster.node_bandwidth / cluster.ranks_per_node);

  const double beside =
      ring("gather weights", shard, tensor, 2 * layers * passes) +
      cluster.reduction * ring("reduce gradients", shard, tensor, layers * passes) +
      cluster.reduction * ring("sum gradients",
                               layout.mesh.shard > 1 && moved("reduce gradients") > 0 ? replicate : shard * replicate,
                               moved("reduce gradients") > 0 ? tensor * shard : tensor, 2) +
      ring("share weights", shard, tensor, 1) + stream;
  const double computing = each * passes;
  double seconds = std::max(computing, beside) + cluster.overlap * std::min(computing, beside);
  const double communicating = seconds - computing + in_the_way * passes;
  seconds += waiting;
  const double doublings = std::log2(static_cast<double>(layout.ranks()) / 128);
  if (doublings > 0) seconds *= 1 + cluster.growth * doublings;
  const double parts = static_cast<double>(layout.mesh.pipeline) * tensor * (moved("reduce gradients") > 0 ? shard : 1);
  seconds += pass.update / parts;
  return {.seconds = seconds,
          .computing = slowest * passes + pass.update / parts,
          .communicating = communicating,
          .waiting = waiting,
          .tokens_per_second = static_cast<double>(job.tokens * job.accumulate) / seconds};
}

void add_spill(StepTime& time, double bytes, const Cluster& cluster) {
  const double moving = 2 * bytes / cluster.disk_bandwidth, before = time.seconds;
  time.spilling = std::max(0.0, moving - time.computing);
  time.seconds += time.spilling;
  time.tokens_per_second *= before / time.seconds;
}

}  // namespace nibble
