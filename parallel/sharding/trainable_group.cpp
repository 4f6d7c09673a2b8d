#include "nibble/parallel/sharding/trainable_group.h"

#include <algorithm>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/parallel/trained_parameters.h"

namespace nibble {

namespace {

constexpr int64_t kAlignment = 16;
static_assert(kSquaresPiece % ops::kEightBitBlock == 0);

std::vector<int64_t> sizes_of(const std::vector<Parameter*>& parameters) {
  std::vector<int64_t> sizes;
  for (const Parameter* parameter : parameters) sizes.push_back(parameter->value.numel());
  return sizes;
}

Tensor flat_part(const Tensor& global, int64_t begin, int64_t end) {
  return global.reshape({global.numel()}).rows(begin, end);
}

Tensor view_of(const Tensor& flat, int64_t begin, const Shape& shape) {
  return flat.rows(begin, begin + element_count(shape)).reshape(shape);
}

}  // namespace

TrainableGroup::TrainableGroup(std::vector<Parameter*> parameters, ShardLevel level, bool full_gradients,
                               Communicator& ranks, MemoryPool& pool, const std::string& what)
    : parameters_(std::move(parameters)),
      layout_(sizes_of(parameters_), ranks.size(), kAlignment, kSquaresPiece),
      full_gradients_(full_gradients),
      ranks_(ranks),
      pool_(pool),
      what_(what) {
  const size_t me = static_cast<size_t>(ranks.rank());
  const int64_t begin = layout_.shard_bounds()[me], end = layout_.shard_bounds()[me + 1];
  Tensor shard;
  if (level == ShardLevel::weights) {
    std::vector<Tensor*> tensors;
    for (Parameter* parameter : parameters_) {
      Tensor& value = parameter->value;
      // Only this rank's shard is read and widened; the rest stays in the file.
      Tensor wide = Tensor::planned(value.shape(), DType::f32);
      if (value.dtype() != DType::f32) {
        wide = Tensor::empty(pool_, value.shape(), DType::f32, parameter->name);
        for (const FlatPart& part : layout_.parts(ranks.rank())) {
          if (parameters_[part.tensor] != parameter) continue;
          Tensor target = flat_part(wide, part.begin, part.end);
          ops::cast(flat_part(value, part.begin, part.end), target);
        }
        release_pages(value);
        value = wide;
      }
      tensors.push_back(&value);
    }
    weights_.emplace(std::move(tensors), layout_, sizeof(float), ranks, pool_, what_);
    shard = Tensor::view(weights_->shard().storage(), 0, {end - begin}, DType::f32);
  } else {
    values_ = Tensor::zeros(pool_, {layout_.size()}, DType::f32, what_);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Tensor value = view_of(values_, layout_.offset(i), parameters_[i]->value.shape());
      ops::cast(parameters_[i]->value, value);
      release_pages(parameters_[i]->value);
      parameters_[i]->value = value;
    }
    shard = values_.rows(begin, end);
  }
  const MemoryPool::Use use(pool_, MemoryUse::gradients);
  shard_gradient_ = Tensor::zeros(pool_, {end - begin}, DType::f32, what_ + " gradients (shard)");
  for (const FlatPart& part : layout_.parts(ranks.rank())) {
    auto result = std::make_unique<Parameter>();
    result->name = parameters_[part.tensor]->name;
    result->value = shard.rows(part.at - begin, part.at - begin + part.end - part.begin);
    result->gradient = shard_gradient_.rows(part.at - begin, part.at - begin + part.end - part.begin);
    result->trainable = true;
    shards_.push_back(std::move(result));
  }
  for (Parameter* parameter : parameters_) {
    parameter->trainable = true;
    parameter->gradient = Tensor::planned(parameter->value.shape(), DType::f32);
  }
  if (full_gradients_) open_gradients();
}

void TrainableGroup::bind_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Shape& shape = parameters_[i]->value.shape();
    parameters_[i]->gradient =
        gradients_ ? view_of(gradients_, layout_.offset(i), shape) : Tensor::planned(shape, DType::f32);
  }
}

void TrainableGroup::open_gradients() {
  if (gradients_) return;
  const MemoryPool::Use use(pool_, full_gradients_ ? MemoryUse::gradients : MemoryUse::gathered);
  gradients_ = Tensor::zeros(pool_, {layout_.size()}, DType::f32, what_ + " gradients");
  bind_gradients();
}

void TrainableGroup::reduce(const std::vector<bool>& present, const Wire& wire) {
  if (std::find(present.begin(), present.end(), true) != present.end()) {
    reduce_scatter_tree(ranks_, "reduce gradients", gradients_, layout_.shard_bounds(), shard_gradient_, present, wire,
                        pool_);
  }
  if (full_gradients_) return;
  gradients_ = {};
  bind_gradients();
}

void TrainableGroup::share_values() {
  if (weights_) return;
  std::vector<size_t> bounds;
  for (const int64_t bound : layout_.shard_bounds()) bounds.push_back(static_cast<size_t>(bound) * sizeof(float));
  const size_t me = static_cast<size_t>(ranks_.rank());
  ranks_.all_gather("share weights", values_.rows(layout_.shard_bounds()[me], layout_.shard_bounds()[me + 1]), values_,
                    bounds);
}

std::vector<CheckpointSlice> TrainableGroup::slices(const NamedTensor& tensor) const {
  for (const FlatPart& part : layout_.parts(ranks_.rank())) {
    const Parameter& global = *parameters_[part.tensor];
    if (tensor.name != global.name && !tensor.name.starts_with(global.name + ".exp_avg")) continue;
    if (tensor.name.ends_with(".absmax")) {  // of blocks of the 8-bit state, which parts begin with
      const int64_t blocks = ops::eight_bit_blocks(global.value.numel());
      return {{tensor.name, tensor.value, {blocks}, {part.begin / ops::kEightBitBlock}}};
    }
    return flat_slices(tensor.name, tensor.value, global.value.shape(), part.begin);
  }
  return {};
}

}  // namespace nibble
