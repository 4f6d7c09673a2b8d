#include "nibble/core/nn/activation_store.h"

#include <utility>

namespace nibble {

Tensor ActivationStore::forward(size_t l, Block& block, const Tensor& x, const LayerContext& context,
                                const StepContext& step) {
  Layer& layer = layers_.at(l);
  if (policy_ == Recompute::none) return block.forward(x, context, step, &layer.saved);
  layer.input = x;
  return block.forward(x, context, step, nullptr);
}

BlockSaved ActivationStore::take(size_t l, Block& block, const LayerContext& context, const StepContext& step) {
  Layer layer = std::exchange(layers_.at(l), {});
  if (policy_ == Recompute::block) block.forward(layer.input, context, step, &layer.saved);
  return std::move(layer.saved);
}

}  // namespace nibble
