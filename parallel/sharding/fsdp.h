#pragma once
// Fully sharded data parallelism (FSDP), and what of it ShardLevel leaves out (ZeRO-1 and ZeRO-2, Rajbhandari et al.
// 2020): every rank of the shard axis keeps a shard of a Decoder's bytes.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/nn/hooks.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/sharding/trainable_group.h"
#include "nibble/parallel/trained_parameters.h"

namespace nibble {

struct ShardOptions {
  ShardLevel level = ShardLevel::weights;
  bool reshard_after_forward = true;  ///< false: gathered weights stay until the update
  int64_t prefetch = 1;               ///< blocks gathered ahead; 0: none
  Wire wire;                          ///< of gradients
};

/// The shards of a Decoder. As its hooks this gathers the weights of a block before a pass and releases them after it;
/// with gradients in shards it adds up those of all ranks after every microbatch, block by block.
class FullySharded final : public TrainedParameters, public BlockHooks {
 public:
  /// See shard().
  FullySharded(Decoder& model, const std::vector<Parameter*>& trained, bool shard_trained, const ShardOptions& options,
               const Mesh& mesh, MemoryPool& pool);
  ~FullySharded() override;

  /// Whether weights are gathered, and whether gradients are reduced in rounds: every rank has a microbatch at most.
  bool gathers() const { return options_.level == ShardLevel::weights; }
  bool has_rounds() const { return has_rounds_; }
  /// present[r]: whether rank r of the data axes has a microbatch in the round that begins.
  void begin_round(const std::vector<bool>& present);
  /// Calls body() while the weights of a layer (as the hooks number them) have their bytes.
  void with_layer(int64_t layer, const std::function<void()>& body);
  /// The same for the trained parameters of all layers.
  void with_trained(const std::function<void()>& body);
  /// After values of parameters() changed: those of the Decoder are what all ranks have, or will be gathered.
  void share_values();

  void before_forward(int64_t layer) override;
  void after_forward(int64_t layer) override;
  void before_backward(int64_t layer) override;
  void after_backward(int64_t layer) override;

  std::vector<Parameter*> parameters() const override;
  /// With rounds, what the hooks have reduced is summed over the copies.
  void reduce_gradients(const std::vector<bool>& present) override;
  void visit_partial_gradients(const std::function<void(Tensor&)>& visitor) override;
  Tensor tied_gradient(const Parameter& embedding) const override;
  std::vector<double> gradient_squares(const std::vector<const Parameter*>& counted) const override;
  std::vector<CheckpointSlice> slices(const Parameter& parameter, const NamedTensor& tensor) const override;
  bool is_first_copy(const Parameter&) const override { return mesh_.replicas().rank() == 0; }

 private:
  struct Layer {
    std::optional<GatheredBytes> frozen;
    /// Gradients of which tensor-parallel ranks have terms, and an embedding that is the head of another stage, are
    /// apart: all ranks that have to add them hold the same shards.
    std::unique_ptr<TrainableGroup> trainable, partial, tied;
    std::vector<TrainableGroup*> groups() const;
  };
  template <typename Call>
  void each_group(const Call& call) const;
  /// What a pass over `layer` needs: the head of a tied model needs the embedding too.
  template <typename Call>
  void each_needed(int64_t layer, const Call& call);
  void shard_frozen(const std::vector<Parameter*>& trained);
  void shard_trained(const std::vector<Parameter*>& trained);
  void start(int64_t layer);
  void acquire(int64_t layer);
  void release(int64_t layer);

  Decoder& model_;
  ShardOptions options_;
  const Mesh& mesh_;
  MemoryPool& pool_;
  bool has_rounds_;
  std::map<int64_t, Layer> layers_;
  std::vector<bool> present_;  // of the shard group, in this round
};

/// The layer of a parameter or module, as BlockHooks numbers them.
int64_t layer_of(const Decoder& model, const std::string& name);
/// The same of what is gathered together: a block that layers share has a number of its own behind the layers'.
int64_t gathered_group_of(const Decoder& model, const std::string& name);

/// Shards `model` over mesh.shards() and sets its hooks: with shard_trained the parameters `trained`, trainable or
/// about to be, and at ShardLevel::weights the frozen rest. model and mesh must outlive it.
std::unique_ptr<FullySharded> shard(Decoder& model, const std::vector<Parameter*>& trained, bool shard_trained,
                                    const ShardOptions& options, const Mesh& mesh, MemoryPool& pool);

}  // namespace nibble
