#include "nibble/parallel/plan/job.h"

#include <algorithm>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/parallel/data/assignment.h"
#include "nibble/parallel/sharding/fsdp.h"

namespace nibble {

namespace {

int64_t sum_of(const std::vector<PlannedGroup>& groups, int64_t PlannedGroup::*what) {
  int64_t sum = 0;
  for (const PlannedGroup& group : groups) sum += group.*what;
  return sum;
}

}  // namespace

int64_t PlannedModel::weights() const { return sum_of(groups, &PlannedGroup::weights); }
int64_t PlannedModel::trained_values() const { return sum_of(groups, &PlannedGroup::trained); }

PlannedModel plan_model(const DecoderConfig& config, const ModelMaker& make, bool everything) {
  const MetaDevice device;
  MemoryPool pool(0, device);
  SelfComm comm;
  RankContext rank{comm, pool, threads(), 0};
  Decoder model = make(config, {}, nullptr, nullptr, rank);
  PlannedModel planned{config, std::vector<PlannedGroup>(static_cast<size_t>(config.layers + 2))};
  const auto group_of = [&](const std::string& name) -> PlannedGroup& {
    return planned.groups[static_cast<size_t>(layer_of(model, name) + 1)];
  };
  const auto note = [&](PlannedGroup& group, const std::string& name, const Tensor& tensor, bool trained) {
    const size_t layers = name.find(config.names.layers);
    const size_t own = layers == std::string::npos ? 0 : name.find('.', layers + config.names.layers.size());
    group.kind += name.substr(own) + (trained ? "*" : " ") + std::string(dtype_name(tensor.dtype()));
    for (const int64_t size : tensor.shape()) group.kind += "," + std::to_string(size);
    (trained ? group.trained : group.frozen_bytes) += trained ? tensor.numel() : static_cast<int64_t>(tensor.bytes());
  };
  model.visit([&](Parameter& parameter) {
    PlannedGroup& group = group_of(parameter.name);
    note(group, parameter.name, parameter.value, everything || parameter.trainable);
    group.weights += parameter.value.numel();
  });
  const ParameterVisitor of_adapter = [&](Parameter& parameter) {
    group_of(parameter.name).weights -= parameter.value.numel();
  };
  model.visit_embeddings([&](Embedding& embedding) {
    if (embedding.adapter()) embedding.adapter()->visit(of_adapter);
  });
  model.visit_linears([&](Linear& linear) {
    if (linear.adapter()) linear.adapter()->visit(of_adapter);
    if (linear.weight().parameter() || linear.weight().storage().empty() || linear.weight().shared()) return;
    PlannedGroup& group = group_of(linear.name());
    if (linear.weight().matrix() == 0) {  // the first has the tensor of all
      for (const Tensor* part : linear.weight().storage()) note(group, linear.name(), *part, false);
    }
    group.weights += linear.in_features() * linear.out_features();
    group.packed = true;
  });
  for (size_t l = 0; l < config.layer.size(); ++l) {
    const LayerConfig& layer = config.layer[l];
    planned.groups[l + 1].kind +=
        std::string(layer.mixer.target_type().name()) + layer.feed_forward.target_type().name();
  }
  return planned;
}

bool PlanLayout::recomputes(int64_t layer) const {
  return recomputed.empty() ? recompute == Recompute::block : recomputed.at(static_cast<size_t>(layer));
}

int64_t lowest_with_backward(const PlannedModel& model, const LayerRange& range) {
  for (int64_t l = -1; l < range.begin; ++l) {
    if (model.group(l).trained > 0) return range.begin;
  }
  int64_t lowest = range.begin;
  while (lowest < range.end && model.group(lowest).trained == 0) ++lowest;
  return lowest;
}

std::string describe(const PlanLayout& layout) {
  std::string text;
  const auto axis = [&](const char* name, int64_t degree) {
    if (degree > 1) text += (text.empty() ? "" : " x ") + std::string(name) + " " + std::to_string(degree);
  };
  axis("pipeline", layout.mesh.pipeline);
  axis("replicate", layout.mesh.replicate);
  axis("shard", layout.mesh.shard);
  axis("tensor", layout.mesh.tensor);
  if (text.empty()) text = "one rank";
  if (layout.mesh.shard > 1) text += ", zero " + std::to_string(layout.zero);
  if (layout.mesh.experts > 1) text += ", experts on " + std::to_string(layout.mesh.experts) + " ranks";
  const auto again = std::ranges::count(layout.recomputed, true);
  if (again > 0) {
    text += ", " + std::to_string(again) + " of " + std::to_string(layout.recomputed.size()) + " blocks recomputed";
  } else if (layout.recomputed.empty() && layout.recompute == Recompute::block) {
    text += ", blocks recomputed";
  }
  if (layout.offload) text += ", activations in a file";
  return text;
}

bool sums_in_rounds(const PlanJob& job, const PlanLayout& layout) {
  return layout.mesh.experts > 1 ||
         (layout.mesh.shard > 1 && (job.everything || layout.shard_adapters) && layout.zero >= 2);
}

int64_t microbatches_of_rank(const PlanJob& job, const PlanLayout& layout) {
  const int64_t ranks = layout.mesh.data();
  if (sums_in_rounds(job, layout)) return round_count(job.accumulate, static_cast<int>(ranks), job.gradient_sum);
  return (job.accumulate + ranks - 1) / ranks;
}

}  // namespace nibble
