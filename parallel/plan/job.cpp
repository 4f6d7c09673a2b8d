#include "nibble/parallel/plan/job.h"

#include <algorithm>
#include <numeric>

#include "nibble/core/base/parallel.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/load.h"
#include "nibble/parallel/data/assignment.h"

namespace nibble {

bool PlannedLinear::is_like(const PlannedLinear& other) const {
  PlannedLinear renamed = other;
  renamed.module = module;
  return *this == renamed;
}

bool PlannedGroup::is_like(const PlannedGroup& other) const {
  return vectors == other.vectors && vectors_trained == other.vectors_trained &&
         std::ranges::equal(linears, other.linears, [](const auto& a, const auto& b) { return a.is_like(b); });
}

bool PlannedGroup::has_trainable() const {
  return vectors_trained || std::ranges::any_of(linears, &PlannedLinear::has_trainable) ||
         std::ranges::any_of(tables, [](const PlannedTable& table) { return table.trained || table.trained_rows > 0; });
}

int64_t PlannedGroup::weights() const {
  int64_t count = std::accumulate(vectors.begin(), vectors.end(), int64_t{0});
  for (const PlannedLinear& linear : linears) count += linear.size();
  for (const PlannedTable& table : tables) count += table.size();
  return count;
}

int64_t PlannedGroup::frozen_bytes() const {
  int64_t bytes = 0;
  for (const PlannedLinear& linear : linears) bytes += linear.trained ? 0 : linear.stored;
  for (const PlannedTable& table : tables) bytes += table.trained ? 0 : table.stored;
  return bytes;
}

int64_t PlannedGroup::adapter_values() const {
  int64_t count = 0;
  for (const PlannedLinear& linear : linears) count += linear.adapter_size();
  for (const PlannedTable& table : tables) count += table.trained_rows * table.width;
  return count;
}

std::vector<int64_t> PlannedGroup::trained_sizes() const {
  std::vector<int64_t> sizes;
  for (const PlannedTable& table : tables) {
    if (table.trained) sizes.push_back(table.size());
    if (table.trained_rows > 0) sizes.push_back(table.trained_rows * table.width);
  }
  for (const PlannedLinear& linear : linears) {
    if (linear.trained) sizes.push_back(linear.size());
    if (linear.r > 0) sizes.insert(sizes.end(), {linear.r * linear.in, linear.out * linear.r});
    if (linear.dora) sizes.push_back(linear.out);
  }
  if (vectors_trained) sizes.insert(sizes.end(), vectors.begin(), vectors.end());
  return sizes;
}

int64_t PlannedGroup::trained_values() const {
  const std::vector<int64_t> sizes = trained_sizes();
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

PlannedGroup& PlannedModel::group(int64_t layer) {
  if (layer < 0) return input;
  return layer == config.layers ? head : layers.at(static_cast<size_t>(layer));
}

int64_t PlannedModel::weights() const {
  int64_t count = 0;
  for (int64_t l = -1; l <= config.layers; ++l) count += group(l).weights();
  return count;
}

int64_t PlannedModel::trained_values() const {
  int64_t count = 0;
  for (int64_t l = -1; l <= config.layers; ++l) count += group(l).trained_values();
  return count;
}

PlannedModel plan_model(const DecoderConfig& config, const std::function<void(PlannedLinear&)>& linear,
                        const std::function<void(PlannedTable&)>& table, bool vectors_trained) {
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, threads(), 0};
  Decoder shapes = plan_decoder(config, rank);
  PlannedModel model{.config = config, .input = {}, .layers = {}, .head = {}};
  model.layers.resize(static_cast<size_t>(config.layers));
  bool in_layers = false, after_layers = false;  // in the order of the visit
  const auto group_of = [&](const std::string& name) -> PlannedGroup& {
    const size_t at = name.find(config.names.layers);
    if (at == 0) {
      in_layers = true;
      return model.layers.at(static_cast<size_t>(std::stoll(name.substr(config.names.layers.size()))));
    }
    after_layers = in_layers;
    return after_layers ? model.head : model.input;
  };
  shapes.visit_linears([&](Linear& from) {
    const bool tied = config.tied_head && from.name() == config.names.head;
    PlannedLinear planned{from.name(), from.out_features(), from.in_features(), from.bias() != nullptr};
    linear(planned);
    if (tied) {
      model.head_trained = planned.has_trainable();
    } else {
      PlannedGroup& group = group_of(from.name());
      group.linears.push_back(planned);
      if (&group == &model.head) model.head_trained = model.head_trained || planned.has_trainable();
    }
  });
  in_layers = after_layers = false;
  shapes.visit([&](Parameter& parameter) {
    PlannedGroup& group = group_of(parameter.name);
    const bool vector = parameter.value.rank() == 1 || is_head_norm(config.names, parameter.name);
    if (vector) group.vectors.push_back(parameter.value.numel());
  });
  shapes.visit_embeddings([&](Embedding& embedding) {
    const Parameter& values = embedding.table();
    PlannedTable planned{values.name.substr(0, values.name.rfind('.')), values.value.dim(0), values.value.dim(1)};
    table(planned);
    if (config.tied_head && planned.name == config.names.embedding) {
      model.head_trained = model.head_trained || planned.trained;
    }
    model.input.tables.push_back(planned);
  });
  for (int64_t l = -1; l <= config.layers; ++l) model.group(l).vectors_trained = vectors_trained;
  return model;
}

PlannedModel tensor_part(const PlannedModel& model, int64_t degree) {
  if (degree <= 1) return model;
  PlannedModel part = model;
  const auto cut = [degree](int64_t size) { return (size + degree - 1) / degree; };
  DecoderConfig& config = part.config;
  const BlockNames& names = config.names.block;
  for (int64_t l = -1; l <= config.layers; ++l) {
    for (PlannedLinear& linear : part.group(l).linears) {
      const bool by_rows = linear.module.ends_with("." + names.attention.output) ||
                           linear.module.ends_with("." + names.mlp.down);  // the others by columns
      (by_rows ? linear.in : linear.out) = cut(by_rows ? linear.in : linear.out);
      linear.stored = cut(linear.stored);
      linear.blocks = cut(linear.blocks);
      if (!by_rows) continue;
      linear.mapped = false;                                                     // a part of every row is a copy,
      if (linear.packed) linear.stored = linear.size() / 2 + 4 * linear.blocks;  // with its scales in f32
    }
    for (PlannedTable& table : part.group(l).tables) {
      table.rows = cut(table.rows);
      table.stored = cut(table.stored);
    }
  }
  config.heads = cut(config.heads);
  config.kv_heads = cut(config.kv_heads);
  config.mlp_width = cut(config.mlp_width);
  config.vocab_size = cut(config.vocab_size);
  return part;
}

bool PlanLayout::recomputes(int64_t layer) const {
  return recomputed.empty() ? recompute == Recompute::block : recomputed.at(static_cast<size_t>(layer));
}

int64_t lowest_with_backward(const PlannedModel& model, const LayerRange& range) {
  for (int64_t l = -1; l < range.begin; ++l) {
    if (model.group(l).has_trainable()) return range.begin;
  }
  int64_t lowest = range.begin;
  while (lowest < range.end && !model.group(lowest).has_trainable()) ++lowest;
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
  axis("tensor", layout.tensor);
  if (text.empty()) text = "one rank";
  if (layout.mesh.shard > 1) text += ", zero " + std::to_string(layout.zero);
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
  return layout.mesh.shard > 1 && (job.everything || layout.shard_adapters) && layout.zero >= 2;
}

int64_t microbatches_of_rank(const PlanJob& job, const PlanLayout& layout) {
  const int64_t ranks = layout.mesh.data();
  if (sums_in_rounds(job, layout)) return round_count(job.accumulate, static_cast<int>(ranks), job.gradient_sum);
  return (job.accumulate + ranks - 1) / ranks;
}

}  // namespace nibble
