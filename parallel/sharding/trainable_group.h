#pragma once
// The trainable parameters of one block, with values, gradients and optimizer state sharded as far as asked for.

#include <memory>
#include <optional>
#include <vector>

#include "nibble/core/nn/parameter.h"
#include "nibble/core/train/checkpoint/checkpoint.h"
#include "nibble/parallel/data/tree_sum.h"
#include "nibble/parallel/sharding/gathered.h"

namespace nibble {

/// What is sharded over the ranks of a shard group (Rajbhandari et al. 2020, ZeRO).
enum class ShardLevel : uint8_t {
  optimizer = 1,  ///< optimizer state
  gradients = 2,  ///< and gradients
  weights = 3,    ///< and weights: gathered block by block
};

/// Takes over the parameters it is given: their values and gradients are views that come and go, and what the optimizer
/// works on are shards(), f32: what this rank has of each parameter, under its name.
class TrainableGroup {
 public:
  /// parameters: trainable or not yet; values of any float dtype, from which each rank reads its shard (all of it below
  /// ShardLevel::weights). full_gradients: gradients stay unsharded until reduce().
  TrainableGroup(std::vector<Parameter*> parameters, ShardLevel level, bool full_gradients, Communicator& ranks,
                 MemoryPool& pool, const std::string& what);

  void start() {
    if (weights_) weights_->start();
  }
  void acquire() {
    if (weights_) weights_->acquire();
  }
  void release() {
    if (weights_) weights_->release();
  }
  /// Zero gradients of the unsharded parameters, unless they are there.
  void open_gradients();
  /// Adds the sum over the ranks to the shard's gradients and, unless full_gradients, drops the unsharded ones.
  /// present: as in tree_sum.h, but here all of them may have nothing to add.
  void reduce(const std::vector<bool>& present, const Wire& wire);
  /// Below ShardLevel::weights: the shards' values become those of all.
  void share_values();

  const std::vector<std::unique_ptr<Parameter>>& shards() const { return shards_; }
  const std::vector<Parameter*>& unsharded() const { return parameters_; }
  const FlatLayout& layout() const { return layout_; }
  /// This rank's gradients, [n] f32, padding included.
  const Tensor& shard_gradient() const { return shard_gradient_; }
  /// Where a tensor of shards() or of its optimizer state ("NAME", "NAME.exp_avg") lies; nothing for other names.
  std::vector<CheckpointSlice> slices(const NamedTensor& tensor) const;

 private:
  void bind_gradients();

  std::vector<Parameter*> parameters_;
  FlatLayout layout_;
  bool full_gradients_;
  Communicator& ranks_;
  MemoryPool& pool_;
  std::string what_;
  std::optional<GatheredBytes> weights_;  // ShardLevel::weights
  Tensor values_;                         // else: all values, [n] f32
  Tensor gradients_;                      // unsharded, while they are there
  Tensor shard_gradient_;
  std::vector<std::unique_ptr<Parameter>> shards_;
};

}  // namespace nibble
