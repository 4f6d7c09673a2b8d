#include "nibble/parallel/parallel_model.h"

#include <utility>

#include "nibble/core/models/load.h"
#include "nibble/parallel/pipeline/tied_embedding.h"
#include "nibble/parallel/tensor/global_tensor.h"

namespace nibble {

namespace {

// The parameter that a tensor of parameters() or of the optimizer's state belongs to.
std::string parameter_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind(".exp_avg")); }

}  // namespace

ParallelModel::ParallelModel(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh)
    : model_(model), options_(options), mesh_(mesh) {
  model_.visit([&](Parameter& parameter) {
    if (parameter.buffer || (!train_everything && !parameter.trainable)) return;
    trained_.push_back(&parameter);
    by_name_[parameter.name] = &parameter;
  });
}

bool ParallelModel::is_owner(const Parameter& parameter) const {
  return !is_tied_copy(model_, parameter.name) && (mesh_.tensor().rank() == 0 || parameter.shard);
}

bool ParallelModel::is_of_own_experts(const std::string& name) const { return own_experts_.contains(name); }

Shape ParallelModel::global_shape(const Parameter& shard) const {
  const Parameter& parameter = *by_name_.at(shard.name);
  return parameter.shard ? parameter.shard.global : parameter.value.shape();
}

Tensor ParallelModel::tied_gradient() const {
  for (const Parameter* parameter : trained_) {
    if (is_tied_apart(model_, parameter->name)) return trained().tied_gradient(*parameter);
  }
  return {};
}

void ParallelModel::share_values() {
  if (sharded_) sharded_->share_values();
}

Slicer ParallelModel::slicer() const {
  return [this](const std::vector<NamedTensor>& tensors) {
    std::vector<CheckpointSlice> slices;
    for (const NamedTensor& tensor : tensors) {
      const Parameter& parameter = *by_name_.at(parameter_of(tensor.name));
      for (const CheckpointSlice& slice : trained().slices(parameter, tensor)) {
        for (CheckpointSlice& piece : global_slices(slice, parameter.shard)) slices.push_back(std::move(piece));
      }
    }
    return slices;
  };
}

Slicer ParallelModel::written_slicer() const {
  return [this, all = slicer()](std::vector<NamedTensor> tensors) {
    std::erase_if(tensors, [&](const NamedTensor& tensor) {
      const Parameter& parameter = *by_name_.at(parameter_of(tensor.name));
      return !is_owner(parameter) || !trained().is_first_copy(parameter);
    });
    return all(tensors);
  };
}

void ParallelModel::visit_unsharded(const std::function<void(const std::vector<NamedTensor>&)>& visit) {
  std::set<int64_t> layers;
  for (const NamedTensor& tensor : state_dict(model_)) layers.insert(gathered_group_of(model_, tensor.name));
  for (const int64_t layer : layers) {
    const auto visit_layer = [&] {
      std::vector<NamedTensor> here = state_dict(model_);
      std::erase_if(here, [&](const NamedTensor& tensor) { return gathered_group_of(model_, tensor.name) != layer; });
      visit(here);
    };
    sharded_ ? sharded_->with_layer(layer, visit_layer) : visit_layer();
  }
}

void ParallelModel::with_trainable(const std::function<void()>& body) {
  sharded_ ? sharded_->with_trained(body) : body();
}

}  // namespace nibble
