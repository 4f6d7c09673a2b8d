#include "nibble/core/nn/activation_store.h"

#include <utility>

namespace nibble {

void ActivationStore::Layer::visit(const std::function<void(Tensor&)>& visitor) {
  if (input) visitor(input);
  saved.visit(visitor);
}

Tensor ActivationStore::forward(size_t l, Block& block, const Tensor& x, const LayerContext& context,
                                const StepContext& step) {
  Layer& layer = layers_.at(l);
  const bool again = l < recomputed_;
  if (spill_) spill_->write_what_stays();
  if (again) layer.input = x;
  Tensor y = block.forward(x, context, step, again ? nullptr : &layer.saved);
  if (spill_) offload(l);
  return y;
}

// Tensors without bytes stand for those in the file.
void ActivationStore::offload(size_t l) {
  Layer& layer = layers_[l];
  std::vector<Tensor> tensors;
  layer.visit([&](Tensor& tensor) {
    if (!tensor.writable() || tensor.bytes() == 0) return;  // what is mapped lies in a file already
    const Tensor shape = Tensor::planned(tensor.shape(), tensor.dtype());
    tensors.push_back(std::exchange(tensor, shape));
  });
  if (tensors.empty()) return;
  const bool wanted_next = l + 1 == layers_.size();
  layer.spilled = spill_->put(std::move(tensors), wanted_next);
}

void ActivationStore::restore(Layer& layer) {
  if (!layer.spilled) return;
  std::vector<Tensor> tensors = layer.spilled->take();
  size_t next = 0;
  layer.visit([&](Tensor& tensor) {
    if (!tensor.has_bytes() && tensor.numel() > 0) tensor = std::move(tensors.at(next++));
  });
  NIBBLE_CHECK(next == tensors.size(), "all tensors are back");
  layer.spilled.reset();
}

void ActivationStore::fetch(size_t l) {
  if (layers_.at(l).spilled) layers_[l].spilled->fetch();
}

BlockSaved ActivationStore::take(size_t l, Block& block, const LayerContext& context, const StepContext& step) {
  Layer layer = std::exchange(layers_.at(l), {});
  restore(layer);
  if (l > 0) fetch(l - 1);
  if (l < recomputed_) return block.recompute(layer.input, context, step);
  return std::move(layer.saved);
}

}  // namespace nibble
