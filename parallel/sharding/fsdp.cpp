#include "nibble/parallel/sharding/fsdp.h"

#include <algorithm>
#include <set>
#include <utility>

#include "nibble/core/models/shared_modules.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/pipeline/tied_embedding.h"

namespace nibble {

namespace {

constexpr int64_t kByteAlignment = 64;
constexpr int64_t kByteGrain = 64 * 128;      // 64 x 256 weights in 4 bits: a block of doubly quantized scales
constexpr size_t kSmallestSharded = 1 << 10;  // bytes; smaller tensors are not sharded

// Behind those of the layers.
int64_t group_of_block(const DecoderConfig& config, int64_t first_layer) { return config.layers + 1 + first_layer; }

std::vector<bool> one_group(const std::vector<bool>& present, int64_t group, int which) {
  const auto begin = present.begin() + which * group;
  return {begin, begin + group};
}

}  // namespace

int64_t layer_of(const Decoder& model, const std::string& name) {
  const TensorNames& names = model.config().names;
  const size_t at = name.find(names.layers);
  if (at != std::string::npos) return std::stoll(name.substr(at + names.layers.size()));
  const LayerInputTableNames& inputs = names.layer_inputs;
  const std::string* const low_modules[] = {&names.embedding,   &names.positions,     &names.embedding_norm,
                                            &names.project_in,  &names.split_streams, &inputs.embedding,
                                            &inputs.projection, &inputs.norm};
  const bool low = std::any_of(std::begin(low_modules), std::end(low_modules), [&](const std::string* module) {
    return !module->empty() && name.find(*module + ".") != std::string::npos;
  });
  // A tied head on a stage of its own holds the embedding's parameter.
  return low && model.has_embedding() ? -1 : model.config().layers;
}

int64_t gathered_group_of(const Decoder& model, const std::string& name) {
  const int64_t first = first_layer_of_block(model.config(), name);
  return first < 0 ? layer_of(model, name) : group_of_block(model.config(), first);
}

std::unique_ptr<FullySharded> shard(Decoder& model, const std::vector<Parameter*>& trained, bool shard_trained,
                                    const ShardOptions& options, const Mesh& mesh, MemoryPool& pool) {
  return std::make_unique<FullySharded>(model, trained, shard_trained, options, mesh, pool);
}

FullySharded::FullySharded(Decoder& model, const std::vector<Parameter*>& trained, bool shards_trained,
                           const ShardOptions& options, const Mesh& mesh, MemoryPool& pool)
    : model_(model),
      options_(options),
      mesh_(mesh),
      pool_(pool),
      has_rounds_(shards_trained && options.level >= ShardLevel::gradients) {
  if (gathers()) shard_frozen(trained);
  if (shards_trained) shard_trained(trained);
  model_.set_hooks(this);
}

FullySharded::~FullySharded() { model_.set_hooks(nullptr); }

void FullySharded::shard_frozen(const std::vector<Parameter*>& trained) {
  const MemoryPool::Use use(pool_, MemoryUse::base);
  std::map<int64_t, std::vector<Tensor*>> found;
  std::set<const Tensor*> seen;
  for (const Parameter* parameter : trained) seen.insert(&parameter->value);
  // Experts that are here alone stay as they are.
  model_.visit_linears([&](Linear& linear) {
    if (!is_spread(model_, linear)) return;
    for (const Tensor* tensor : linear.weight().storage()) seen.insert(tensor);
  });
  const auto add = [&](const std::string& name, Tensor& tensor) {
    if (tensor.bytes() < kSmallestSharded || !seen.insert(&tensor).second) return;
    found[gathered_group_of(model_, name)].push_back(&tensor);
  };
  model_.visit([&](Parameter& parameter) {
    if (parameter.value.rank() > 1) add(parameter.name, parameter.value);
  });
  model_.visit_linears([&](Linear& linear) {
    for (Tensor* tensor : linear.weight().storage()) add(linear.name(), *tensor);
  });
  for (auto& [layer, tensors] : found) {
    std::vector<int64_t> sizes;
    for (const Tensor* tensor : tensors) sizes.push_back(static_cast<int64_t>(tensor->bytes()));
    FlatLayout layout(sizes, mesh_.shards().size(), kByteAlignment, kByteGrain);
    layers_[layer].frozen.emplace(tensors, std::move(layout), 1, mesh_.shards(), pool_,
                                  "block " + std::to_string(layer));
  }
}

void FullySharded::shard_trained(const std::vector<Parameter*>& trained) {
  std::map<int64_t, std::vector<Parameter*>> complete, partial, tied;
  for (Parameter* parameter : trained) {
    auto& kind = parameter->partial_gradient ? partial : is_tied_apart(model_, parameter->name) ? tied : complete;
    kind[gathered_group_of(model_, parameter->name)].push_back(parameter);
  }
  const auto group = [&](int64_t layer, const std::vector<Parameter*>& parameters) {
    return std::make_unique<TrainableGroup>(parameters, options_.level, !has_rounds_, mesh_.shards(), pool_,
                                            "block " + std::to_string(layer));
  };
  for (auto& [layer, parameters] : complete) layers_[layer].trainable = group(layer, parameters);
  for (auto& [layer, parameters] : partial) layers_[layer].partial = group(layer, parameters);
  for (auto& [layer, parameters] : tied) layers_[layer].tied = group(layer, parameters);
}

std::vector<TrainableGroup*> FullySharded::Layer::groups() const {
  std::vector<TrainableGroup*> found;
  for (const auto* group : {&trainable, &partial, &tied}) {
    if (*group) found.push_back(group->get());
  }
  return found;
}

template <typename Call>
void FullySharded::each_group(const Call& call) const {
  for (const auto& [layer, own] : layers_) {
    for (TrainableGroup* group : own.groups()) call(*group);
  }
}

std::vector<Parameter*> FullySharded::parameters() const {
  std::vector<Parameter*> mine;
  each_group([&](const TrainableGroup& group) {
    for (const auto& shard : group.shards()) mine.push_back(shard.get());
  });
  return mine;
}

// ---- weights ----

template <typename Call>
void FullySharded::each_needed(int64_t layer, const Call& call) {
  const auto one = [&](int64_t number) {
    const auto found = layers_.find(number);
    if (found == layers_.end()) return;
    if (found->second.frozen) call(*found->second.frozen);
    for (TrainableGroup* group : found->second.groups()) call(*group);
  };
  const DecoderConfig& config = model_.config();
  if (layer == config.layers && config.tied_head && model_.has_embedding()) one(-1);
  one(layer);
  if (layer < 0 || layer >= config.layers) return;
  const int64_t first = config.layer[static_cast<size_t>(layer)].block_of;
  if (first >= 0) one(group_of_block(config, first));
}

void FullySharded::start(int64_t layer) {
  each_needed(layer, [](auto& group) { group.start(); });
}
void FullySharded::acquire(int64_t layer) {
  each_needed(layer, [](auto& group) { group.acquire(); });
}
void FullySharded::release(int64_t layer) {
  each_needed(layer, [](auto& group) { group.release(); });
}

void FullySharded::with_layer(int64_t layer, const std::function<void()>& body) {
  if (gathers()) acquire(layer);
  body();
  if (gathers()) release(layer);
}

void FullySharded::with_trained(const std::function<void()>& body) {
  each_group([](TrainableGroup& group) { group.acquire(); });
  body();
  if (gathers()) each_group([](TrainableGroup& group) { group.release(); });
}

void FullySharded::before_forward(int64_t layer) {
  if (!gathers()) return;
  acquire(layer);
  for (int64_t ahead = 1; ahead <= options_.prefetch && layer + ahead <= model_.config().layers; ++ahead) {
    start(layer + ahead);
  }
}

void FullySharded::after_forward(int64_t layer) {
  if (gathers() && options_.reshard_after_forward) release(layer);
}

void FullySharded::before_backward(int64_t layer) {
  if (gathers()) {
    acquire(layer);
    const int64_t lowest = model_.range().begin;
    for (int64_t ahead = 1; ahead <= options_.prefetch && layer - ahead >= lowest; ++ahead) start(layer - ahead);
  }
  if (!has_rounds_) return;
  each_needed(layer, [](auto& group) {
    if constexpr (requires { group.open_gradients(); }) group.open_gradients();
  });
}

void FullySharded::after_backward(int64_t layer) {
  if (gathers() && options_.reshard_after_forward) release(layer);
  if (!has_rounds_) return;
  const auto reduce = [&](int64_t number) {
    const auto found = layers_.find(number);
    if (found == layers_.end()) return;
    for (TrainableGroup* group : found->second.groups()) group->reduce(present_, options_.wire);
  };
  reduce(layer);  // a tied embedding is not complete before layer -1, nor a block before the first layer that has it
  const DecoderConfig& config = model_.config();
  if (layer < 0 || layer >= config.layers) return;
  if (config.layer[static_cast<size_t>(layer)].block_of == layer) reduce(group_of_block(config, layer));
}

void FullySharded::share_values() {
  each_group([](TrainableGroup& group) { group.share_values(); });
  if (!gathers()) return;
  for (const auto& [layer, own] : layers_) release(layer);
}

// ---- gradients ----

void FullySharded::begin_round(const std::vector<bool>& present) {
  present_ = one_group(present, mesh_.shape().shard, mesh_.replicas().rank());
}

void FullySharded::reduce_gradients(const std::vector<bool>& present) {
  if (!has_rounds_) {
    begin_round(present);
    each_group([&](TrainableGroup& group) {
      Tensor shard = group.shard_gradient();
      shard.zero();
      group.reduce(present_, options_.wire);
    });
  }
  const std::vector<bool> copies = any_of_groups(present, mesh_.shape().shard);
  each_group([&](const TrainableGroup& group) {
    Tensor gradient = group.shard_gradient();
    if (gradient.numel() > 0) {
      all_reduce_tree(mesh_.replicas(), "sum gradients", gradient, copies, options_.wire, pool_);
    }
  });
}

void FullySharded::visit_partial_gradients(const std::function<void(Tensor&)>& visitor) {
  for (const auto& [layer, own] : layers_) {
    Tensor gradient = own.partial ? own.partial->shard_gradient() : Tensor();
    if (gradient && gradient.numel() > 0) visitor(gradient);
  }
}

Tensor FullySharded::tied_gradient(const Parameter& embedding) const {
  return layers_.at(layer_of(model_, embedding.name)).tied->shard_gradient();
}

// Each rank adds up the pieces it has, put together in order.
std::vector<double> FullySharded::gradient_squares(const std::vector<const Parameter*>& counted) const {
  std::vector<double> mine;
  std::vector<size_t> bounds = {0};
  std::vector<std::string> names;  // of the pieces of all ranks, in rank order
  for (int r = 0; r < mesh_.shards().size(); ++r) {
    each_group([&](const TrainableGroup& group) {
      const int64_t begin = group.layout().shard_bounds()[static_cast<size_t>(r)];
      for (const FlatPart& part : group.layout().parts(r)) {
        for (int64_t at = part.begin; at < part.end; at += kSquaresPiece) {
          names.push_back(group.unsharded()[part.tensor]->name);
          if (r != mesh_.shards().rank()) continue;
          const int64_t from = part.at + at - part.begin - begin;
          const int64_t to = std::min(from + kSquaresPiece, part.at + part.end - part.begin - begin);
          mine.push_back(ops::sum_of_squares(group.shard_gradient().rows(from, to)));
        }
      }
    });
    bounds.push_back(names.size() * sizeof(double));
  }
  MemoryPool pool;
  const Tensor part = Tensor::from<double>(pool, {static_cast<int64_t>(mine.size())}, mine);
  Tensor all = Tensor::empty(pool, {static_cast<int64_t>(names.size())}, DType::f64);
  mesh_.shards().all_gather("gradient norm", part, all, bounds);
  std::map<std::string, double> sums;
  for (size_t i = 0; i < names.size(); ++i) sums[names[i]] += all.data<const double>()[i];
  std::vector<double> squares;
  for (const Parameter* parameter : counted) squares.push_back(sums.at(parameter->name));
  return squares;
}

std::vector<CheckpointSlice> FullySharded::slices(const Parameter&, const NamedTensor& tensor) const {
  std::vector<CheckpointSlice> found;
  each_group([&](const TrainableGroup& group) {
    for (CheckpointSlice& slice : group.slices(tensor)) found.push_back(std::move(slice));
  });
  return found;
}

}  // namespace nibble
