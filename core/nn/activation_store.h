#pragma once
// The memory policy of a training pass in one place: what each layer keeps for its backward pass, and where.

#include <memory>
#include <vector>

#include "nibble/core/nn/block.h"
#include "nibble/core/tensor/spill_file.h"

namespace nibble {

/// How activations are kept for the backward pass.
enum class Recompute : uint8_t {
  none,   ///< keep what each Block needs
  block,  ///< keep each Block's input and run its forward again in backward (Chen et al. 2016)
};

/// Activations of one forward pass, given back layer by layer in the backward pass, the highest first.
class ActivationStore {
 public:
  /// Layers below `recomputed` keep their input only and run again. spill: where what is kept waits, null: in memory;
  /// one block's is on its way out while the next is computed, and one is read ahead while the one above is used.
  ActivationStore(size_t recomputed, SpillFile* spill, size_t layers)
      : recomputed_(recomputed), spill_(spill), layers_(layers) {}

  /// Runs layer `l` forward on x and keeps what it has to.
  Tensor forward(size_t l, Block& block, const Tensor& x, const LayerContext& context, const StepContext& step);
  /// Starts to read what layer `l` has in the spill file.
  void fetch(size_t l);
  /// What layer `l` needs for its backward pass, computed again if only its input was kept. Once per layer.
  BlockSaved take(size_t l, Block& block, const LayerContext& context, const StepContext& step);

 private:
  struct Layer {
    Tensor input;
    BlockSaved saved;
    std::unique_ptr<SpillFile::Spilled> spilled;  // the tensors above that have no bytes

    void visit(const std::function<void(Tensor&)>& visitor);
  };
  void offload(size_t l);
  void restore(Layer& layer);

  size_t recomputed_;
  SpillFile* spill_;
  std::vector<Layer> layers_;
};

}  // namespace nibble
