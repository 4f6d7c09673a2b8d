#include "nibble/parallel/parallel_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/data/assignment.h"
#include "nibble/parallel/tensor/whole.h"

namespace nibble {

namespace {

constexpr int64_t kByteAlignment = 64;
constexpr int64_t kByteGrain = 64 * 128;      // 64 x 256 weights in 4 bits: a block of doubly quantized scales
constexpr size_t kSmallestSharded = 1 << 10;  // bytes; smaller tensors are whole everywhere
constexpr int64_t kSquaresGrain = 1 << 15;    // pieces of ops::sum_of_squares

std::vector<bool> any_of_groups(const std::vector<bool>& present, int64_t group) {
  std::vector<bool> any(present.size() / static_cast<size_t>(group));
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i]) any[i / static_cast<size_t>(group)] = true;
  }
  return any;
}

std::vector<bool> one_group(const std::vector<bool>& present, int64_t group, int which) {
  const auto begin = present.begin() + which * group;
  return {begin, begin + group};
}

}  // namespace

ParallelModel::ParallelModel(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh,
                             RankContext& rank)
    : model_(model), options_(options), mesh_(mesh), rank_(rank) {
  const MemoryPool::Use use(rank_.pool, train_everything ? MemoryUse::base : MemoryUse::adapters);
  const bool shards = mesh_.shape().shard > 1;
  const bool cut = shards && (train_everything || options_.shard_trainable);
  rounds_ = cut && options_.level >= ShardLevel::gradients;
  model_.visit([&](Parameter& parameter) {
    if (!train_everything && !parameter.trainable) return;
    order_.push_back(&parameter);
    by_name_[parameter.name] = &parameter;
  });
  if (shards && options_.level == ShardLevel::weights && !train_everything) {
    shard_frozen({order_.begin(), order_.end()});
  }
  if (cut) {
    shard_trainable(order_);
  } else {
    replicate(order_);
  }
  gathers_ = shards && options_.level == ShardLevel::weights;
  idle_ = [this] { model_.idle_training(); };
  model_.set_hooks(this);
}

ParallelModel::~ParallelModel() { model_.set_hooks(nullptr); }

int64_t ParallelModel::layer_of(const std::string& name) const {
  const TensorNames& names = model_.config().names;
  const size_t at = name.find(names.layers);
  if (at != std::string::npos) return std::stoll(name.substr(at + names.layers.size()));
  const bool low = name.find(names.embedding + ".") != std::string::npos ||
                   (!names.positions.empty() && name.find(names.positions + ".") != std::string::npos);
  // A tied head on a stage of its own holds the embedding's parameter.
  return low && model_.has_embedding() ? -1 : model_.config().layers;
}

void ParallelModel::shard_frozen(const std::set<const Parameter*>& trained) {
  const MemoryPool::Use use(rank_.pool, MemoryUse::base);
  std::map<int64_t, std::vector<Tensor*>> found;
  std::set<const Tensor*> seen;
  const auto add = [&](const std::string& name, Tensor& tensor) {
    if (tensor.bytes() < kSmallestSharded || !seen.insert(&tensor).second) return;
    found[layer_of(name)].push_back(&tensor);
  };
  model_.visit([&](Parameter& parameter) {
    if (trained.contains(&parameter)) seen.insert(&parameter.value);
    if (parameter.value.rank() > 1) add(parameter.name, parameter.value);
  });
  model_.visit_linears([&](Linear& linear) {
    for (Tensor* tensor : linear.weight().storage()) add(linear.name(), *tensor);
  });
  for (auto& [layer, tensors] : found) {
    std::vector<int64_t> sizes;
    for (const Tensor* tensor : tensors) sizes.push_back(static_cast<int64_t>(tensor->bytes()));
    FlatLayout layout(sizes, mesh_.shards().size(), kByteAlignment, kByteGrain);
    layers_[layer].frozen.emplace(tensors, std::move(layout), 1, mesh_.shards(), rank_.pool,
                                  "block " + std::to_string(layer));
  }
}

void ParallelModel::shard_trainable(const std::vector<Parameter*>& trained) {
  std::map<int64_t, std::vector<Parameter*>> complete, partial, tied;
  for (Parameter* parameter : trained) {
    auto& kind = parameter->partial_gradient ? partial : is_tied(parameter->name) ? tied : complete;
    kind[layer_of(parameter->name)].push_back(parameter);
  }
  const auto group = [&](int64_t layer, const std::vector<Parameter*>& parameters) {
    return std::make_unique<TrainableGroup>(parameters, options_.level, !rounds_, mesh_.shards(), rank_.pool,
                                            "block " + std::to_string(layer));
  };
  for (auto& [layer, parameters] : complete) layers_[layer].trainable = group(layer, parameters);
  for (auto& [layer, parameters] : partial) layers_[layer].partial = group(layer, parameters);
  for (auto& [layer, parameters] : tied) layers_[layer].tied = group(layer, parameters);
}

std::vector<TrainableGroup*> ParallelModel::Layer::groups() const {
  std::vector<TrainableGroup*> found;
  for (const auto* group : {&trainable, &partial, &tied}) {
    if (*group) found.push_back(group->get());
  }
  return found;
}

// Gradients side by side, so that they are summed without copies.
void ParallelModel::replicate(const std::vector<Parameter*>& trained) {
  replicated_ = trained;
  if ((mesh_.data().size() == 1 && parts() == 1) || trained.empty()) {
    for (Parameter* parameter : trained) {
      if (!parameter->trainable) parameter->make_trainable(rank_.pool);
    }
    return;
  }
  int64_t size = 0, partial = 0;
  for (const Parameter* parameter : trained) {
    size += parameter->value.numel();
    if (parameter->partial_gradient) partial += parameter->value.numel();
  }
  const MemoryPool::Use use(rank_.pool, MemoryUse::gradients);
  replicated_gradients_ = Tensor::zeros(rank_.pool, {size}, DType::f32, "gradients");
  if (partial > 0) partial_gradients_ = replicated_gradients_.rows(size - partial, size);
  int64_t at = 0, partial_at = size - partial;
  for (Parameter* parameter : trained) {
    int64_t& next = parameter->partial_gradient ? partial_at : at;
    const int64_t count = parameter->value.numel();
    if (!parameter->trainable) parameter->make_trainable(rank_.pool);
    parameter->gradient = replicated_gradients_.rows(next, next + count).reshape(parameter->value.shape());
    next += count;
  }
}

// Calls call(group, whether its gradients are partial).
template <typename Call>
void ParallelModel::each_group(const Call& call) const {
  for (const auto& [layer, own] : layers_) {
    for (TrainableGroup* group : own.groups()) call(*group, group == own.partial.get());
  }
}

std::vector<Parameter*> ParallelModel::parameters() const {
  std::vector<Parameter*> mine = replicated_;
  each_group([&](const TrainableGroup& group, bool) {
    for (const auto& part : group.parts()) mine.push_back(part.get());
  });
  return mine;
}

// ---- gathering ----

// The head of a tied model needs the embedding too.
template <typename Call>
void ParallelModel::with_layer(int64_t layer, const Call& call) {
  const auto one = [&](int64_t number) {
    const auto found = layers_.find(number);
    if (found == layers_.end()) return;
    if (found->second.frozen) call(*found->second.frozen);
    for (TrainableGroup* group : found->second.groups()) call(*group);
  };
  if (layer == model_.config().layers && model_.config().tied_head && model_.has_embedding()) one(-1);
  one(layer);
}

void ParallelModel::start(int64_t layer) {
  with_layer(layer, [](auto& group) { group.start(); });
}
void ParallelModel::acquire(int64_t layer) {
  with_layer(layer, [](auto& group) { group.acquire(); });
}
void ParallelModel::release(int64_t layer) {
  with_layer(layer, [](auto& group) { group.release(); });
}

void ParallelModel::before_forward(int64_t layer) {
  if (!gathers_) return;
  acquire(layer);
  for (int64_t ahead = 1; ahead <= options_.prefetch && layer + ahead <= model_.config().layers; ++ahead) {
    start(layer + ahead);
  }
}

void ParallelModel::after_forward(int64_t layer) {
  if (gathers_ && options_.reshard_after_forward) release(layer);
}

void ParallelModel::before_backward(int64_t layer) {
  if (gathers_) {
    acquire(layer);
    const int64_t lowest = model_.range().begin;
    for (int64_t ahead = 1; ahead <= options_.prefetch && layer - ahead >= lowest; ++ahead) start(layer - ahead);
  }
  if (!rounds_) return;
  with_layer(layer, [](auto& group) {
    if constexpr (requires { group.open_gradients(); }) group.open_gradients();
  });
}

void ParallelModel::after_backward(int64_t layer) {
  if (gathers_ && options_.reshard_after_forward) release(layer);
  if (!rounds_) return;
  const auto found = layers_.find(layer);  // a tied embedding is not complete before layer -1
  if (found == layers_.end()) return;
  const auto present = one_group(present_in_round(round_), mesh_.shape().shard, mesh_.replicas().rank());
  for (TrainableGroup* group : found->second.groups()) group->reduce(present, options_.wire);
}

void ParallelModel::sum_parts(std::string_view what, Tensor& values) {
  if (parts() == 1) return;
  const std::vector<bool> all(static_cast<size_t>(parts()), true);
  all_reduce_tree(mesh_.tensor(), what, values, all, {}, rank_.pool);
}

// ---- sums ----

std::vector<int64_t> ParallelModel::begin_step(int64_t count) {
  step_count_ = count;
  const int ranks = mesh_.data().size(), rank = mesh_.data().rank();
  if (!rounds_) return whole_subtrees(count, ranks, rank);
  round_begins_ = round_begins(count, ranks, options_.gradient_sum);
  return in_rounds(round_begins_, ranks, rank);
}

int64_t ParallelModel::passes_in_step() const {
  if (rounds_) return static_cast<int64_t>(round_begins_.size()) - 1;
  const int ranks = mesh_.data().size();
  int64_t most = 0;
  for (int d = 0; d < ranks; ++d) {
    most = std::max(most, static_cast<int64_t>(whole_subtrees(step_count_, ranks, d).size()));
  }
  return most;
}

std::vector<bool> ParallelModel::present_in_round(int64_t round) const {
  const auto begin = round_begins_.begin() + round;
  return present(begin[1] - begin[0]);
}

std::vector<bool> ParallelModel::present(int64_t count) const {
  const int ranks = mesh_.data().size();
  std::vector<bool> present;
  for (int d = 0; d < ranks; ++d) present.push_back(!whole_subtrees(count, ranks, d).empty());
  return present;
}

void ParallelModel::sum_over_replicas(const std::vector<bool>& present) {
  const std::vector<bool> copies = any_of_groups(present, mesh_.shape().shard);
  each_group([&](const TrainableGroup& group, bool) {
    Tensor gradient = group.shard_gradient();
    if (gradient.numel() > 0) {
      all_reduce_tree(mesh_.replicas(), "sum gradients", gradient, copies, options_.wire, rank_.pool);
    }
  });
}

// When those of the data axes are summed.
void ParallelModel::sum_partial_gradients() {
  if (parts() == 1) return;
  if (partial_gradients_) sum_parts("sum partial gradients", partial_gradients_);
  each_group([&](const TrainableGroup& group, bool partial) {
    Tensor gradient = group.shard_gradient();
    if (partial && gradient.numel() > 0) sum_parts("sum partial gradients", gradient);
  });
}

// Every rank adds up its own microbatches, then the ranks' sums are added.
double ParallelModel::sum_whole(GradientSum kind, int64_t count, const std::function<double(int64_t)>& run) {
  const std::vector<bool> present = this->present(step_count_);
  for (Parameter* parameter : order_) parameter->gradient.zero();
  double loss = sum_gradients(kind, order_, count, run, rank_.pool);
  for (int64_t i = count; gathers_ && i < passes_in_step(); ++i) idle_();
  const std::vector<bool> group = one_group(present, mesh_.shape().shard, mesh_.replicas().rank());
  each_group([&](TrainableGroup& own, bool) {
    Tensor shard = own.shard_gradient();
    shard.zero();
    own.reduce(group, options_.wire);
  });
  sum_over_replicas(present);
  if (replicated_gradients_) {
    all_reduce_tree(mesh_.data(), "sum gradients", replicated_gradients_, present, options_.wire, rank_.pool);
  }
  return all_reduce_tree(mesh_.data(), "sum loss", loss, present);
}

// The ranks' gradients are added after every microbatch, block by block, and only shards are kept.
double ParallelModel::sum_rounds(GradientSum kind, const std::vector<Parameter*>& parameters,
                                 const std::function<double(int64_t)>& run) {
  const int64_t rounds = passes_in_step();
  const bool at_once = kind == GradientSum::tree;  // else the copies are summed when the rounds are over
  const double loss = sum_gradients(
      kind, parameters, rounds,
      [&](int64_t round) {
        round_ = round;
        const double mine = run(round);
        const std::vector<bool> present = present_in_round(round);
        if (at_once) sum_over_replicas(present);
        return all_reduce_tree(mesh_.data(), "sum loss", mine, present);
      },
      rank_.pool);
  if (!at_once) sum_over_replicas(present_in_round(0));
  return loss;
}

StepLayout ParallelModel::layout() {
  StepLayout layout;
  if (mesh_.data().size() == 1 && parts() == 1) return layout;
  layout.sum_counts = [this](Tensor& counts) { mesh_.data().all_reduce_sum("label tokens", counts); };
  layout.sum_gradients = [this](GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                                const std::function<double(int64_t)>& run) {
    const double loss = rounds_ ? sum_rounds(kind, parameters, run) : sum_whole(kind, count, run);
    sum_partial_gradients();
    return loss;
  };
  if (gathers_ || rounds_) layout.idle = idle_;
  layout.squares = [this](const std::vector<Parameter*>& parameters) { return squares(parameters); };
  layout.after_update = [this] { share_values(); };
  return layout;
}

void ParallelModel::share_values() {
  each_group([&](TrainableGroup& group, bool) { group.share_values(); });
  for (const auto& [layer, groups] : layers_) {
    if (gathers_) release(layer);
  }
}

// Sums of squares of the sharded parameters: each rank those of the pieces it has, put together in order.
std::map<std::string, double> ParallelModel::squares_of_groups() const {
  std::vector<double> mine;
  std::vector<size_t> bounds = {0};
  std::vector<std::pair<std::string, size_t>> names;  // of the pieces of all ranks, in rank order
  for (int r = 0; r < mesh_.shards().size(); ++r) {
    each_group([&](const TrainableGroup& group, bool) {
      const int64_t begin = group.layout().cuts()[static_cast<size_t>(r)];
      for (const FlatPart& part : group.layout().parts(r)) {
        for (int64_t at = part.begin; at < part.end; at += kSquaresGrain) {
          names.emplace_back(group.whole()[part.tensor]->name, 0);
          if (r != mesh_.shards().rank()) continue;
          const int64_t from = part.at + at - part.begin - begin;
          const int64_t to = std::min(from + kSquaresGrain, part.at + part.end - part.begin - begin);
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
  for (size_t i = 0; i < names.size(); ++i) sums[names[i].first] += all.data<const double>()[i];
  return sums;
}

bool ParallelModel::is_tied(const std::string& parameter) const {
  const DecoderConfig& config = model_.config();
  const bool ends_apart = model_.has_embedding() != model_.has_head();
  return config.tied_head && ends_apart && parameter == config.names.embedding + ".weight";
}

Tensor ParallelModel::tied_gradient() const {
  const std::string name = model_.config().names.embedding + ".weight";
  for (const auto& [layer, own] : layers_) {
    if (own.tied) return own.tied->shard_gradient();
  }
  return by_name_.at(name)->gradient;
}

bool ParallelModel::speaks_for(const std::string& parameter) const {
  if (is_tied(parameter) && !model_.has_embedding()) return false;
  return part() == 0 || by_name_.at(parameter)->cut;
}

double ParallelModel::squares(const std::vector<Parameter*>& parameters) const {
  double total = 0;
  if (!replicated_.empty()) {
    for (const Parameter* parameter : parameters) {
      if (speaks_for(parameter->name)) total += ops::sum_of_squares(parameter->gradient);
    }
  } else {
    const std::map<std::string, double> sums = squares_of_groups();
    for (const Parameter* parameter : order_) {
      if (speaks_for(parameter->name)) total += sums.at(parameter->name);
    }
  }
  return mesh_.tensor().all_reduce_sum("gradient norm", total);
}

// ---- state ----

namespace {

// The parameter that a tensor of parameters() or of the optimizer's state belongs to.
std::string parameter_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind(".exp_avg")); }

}  // namespace

Slicer ParallelModel::slicer() const {
  return [this](const std::vector<NamedTensor>& tensors) {
    std::vector<CheckpointSlice> slices;
    for (const NamedTensor& tensor : tensors) {
      std::vector<CheckpointSlice> own;
      if (!replicated_.empty()) {
        own.push_back({tensor.name, tensor.value, tensor.value.shape(), Shape(tensor.value.rank(), 0)});
      }
      each_group([&](const TrainableGroup& group, bool) {
        for (CheckpointSlice& slice : group.slices(tensor)) own.push_back(std::move(slice));
      });
      const Cut& cut = by_name_.at(parameter_of(tensor.name))->cut;
      for (const CheckpointSlice& slice : own) {
        for (CheckpointSlice& piece : slices_of_whole(slice, cut)) slices.push_back(std::move(piece));
      }
    }
    return slices;
  };
}

void ParallelModel::with_trainable(const std::function<void()>& body) {
  each_group([](TrainableGroup& group, bool) { group.acquire(); });
  body();
  each_group([&](TrainableGroup& group, bool) {
    if (gathers_) group.release();
  });
}

Slicer ParallelModel::written_slicer() const {
  const bool mine = replicated_.empty() ? mesh_.replicas().rank() == 0 : mesh_.data().rank() == 0;
  if (!mine) return [](const std::vector<NamedTensor>&) { return std::vector<CheckpointSlice>(); };
  return [this, all = slicer()](std::vector<NamedTensor> tensors) {
    std::erase_if(tensors, [&](const NamedTensor& tensor) { return !speaks_for(parameter_of(tensor.name)); });
    return all(tensors);
  };
}

void ParallelModel::visit_whole(const std::function<void(const std::vector<NamedTensor>&)>& visit) {
  std::set<int64_t> layers;
  for (const NamedTensor& tensor : state_dict(model_)) layers.insert(layer_of(tensor.name));
  for (const int64_t layer : layers) {
    if (gathers_) acquire(layer);
    std::vector<NamedTensor> here;
    for (NamedTensor& tensor : state_dict(model_)) {
      if (layer_of(tensor.name) == layer) here.push_back(std::move(tensor));
    }
    visit(here);
    here.clear();
    if (gathers_) release(layer);
  }
}

}  // namespace nibble
