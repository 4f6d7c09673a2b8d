#pragma once
// The memory policy of a training pass in one place: what each layer keeps for its backward pass.

#include <vector>

#include "nibble/core/nn/block.h"

namespace nibble {

/// How activations are kept for the backward pass.
enum class Recompute : uint8_t {
  none,   ///< keep what each Block needs
  block,  ///< keep each Block's input and run its forward again in backward (Chen et al. 2016)
};

/// Activations of one forward pass, given back layer by layer in the backward pass.
class ActivationStore {
 public:
  ActivationStore(Recompute policy, size_t layers) : policy_(policy), layers_(layers) {}

  /// Runs layer `l` forward on x and keeps what `policy` says.
  Tensor forward(size_t l, Block& block, const Tensor& x, const LayerContext& context, const StepContext& step);
  /// What layer `l` needs for its backward pass, computed again if only its input was kept. Once per layer.
  BlockSaved take(size_t l, Block& block, const LayerContext& context, const StepContext& step);

 private:
  struct Layer {
    Tensor input;
    BlockSaved saved;
  };
  Recompute policy_;
  std::vector<Layer> layers_;
};

}  // namespace nibble
