#pragma once
// What parallelize() has made of a Decoder: what this rank trains, saves and exports of it.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/run/run.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/sharding/fsdp.h"

namespace nibble {

/// Those of the shard axis, and:
struct ParallelOptions : ShardOptions {
  /// Whether trainable parameters are sharded, or only the frozen base (adapters are small: every rank keeps them
  /// unsharded). A Decoder that is fully trained always is.
  bool shard_trainable = true;
  GradientSum gradient_sum = GradientSum::running;
};

/// A Decoder (unsharded, this rank's stage, or shards of either) on the data axes of a mesh, replicate and shard, and
/// on the tensor axis.
class ParallelModel {
 public:
  const ParallelOptions& options() const { return options_; }
  const Mesh& mesh() const { return mesh_; }
  /// The Decoder's trained parameters in its order; how this rank holds them, and in the optimizer's view.
  const std::vector<Parameter*>& decoder_parameters() const { return trained_; }
  TrainedParameters& trained() const { return spread_ ? *spread_ : common(); }
  std::vector<Parameter*> parameters() const { return trained().parameters(); }
  /// Of the tensor that one of parameters() is a shard of.
  Shape global_shape(const Parameter& shard) const;
  /// Null where the shard axis has one rank. These are the Decoder's hooks then.
  FullySharded* sharded() const { return sharded_.get(); }
  /// Whether this rank, of those on the tensor and pipeline axes that have the parameter, counts and writes it.
  bool is_owner(const Parameter& parameter) const;
  /// Whether experts are trained that other ranks of the data axes do not have.
  bool trains_spread_experts() const { return spread_ != nullptr; }
  /// Whether only ranks with the same experts have the Decoder's parameter of this name, which is no part of another's.
  bool is_of_own_experts(const std::string& name) const;
  /// What is here of the gradient of a trained embedding that another stage has too; undefined where there is none.
  Tensor tied_gradient() const;

  /// After values of parameters() changed.
  void share_values();
  /// How what parameters() hold lies in checkpoints.
  Slicer slicer() const;
  /// The same for what this rank writes: nothing where another rank has the same.
  Slicer written_slicer() const;
  /// Gathers block after block; visit() sees the Decoder's parameters and packed weights of one (-1: embedding, L: norm
  /// and head) with their bytes.
  void visit_unsharded(const std::function<void(const std::vector<NamedTensor>&)>& visit);
  /// Calls body() while the trainable parameters of all blocks have their values: adapters, which are small.
  void with_trainable(const std::function<void()>& body);

 private:
  friend ParallelModel parallelize(Decoder&, bool, const ParallelOptions&, const Mesh&, RankContext&);
  ParallelModel(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh);
  /// What of the trained ones all ranks of the data axes have.
  TrainedParameters& common() const { return replicated_ ? *replicated_ : *sharded_; }

  Decoder& model_;
  ParallelOptions options_;
  const Mesh& mesh_;
  std::vector<Parameter*> trained_;
  std::map<std::string, const Parameter*> by_name_;
  std::set<std::string> own_experts_;
  std::unique_ptr<FullySharded> sharded_;
  std::unique_ptr<TrainedParameters> replicated_;  // null: sharded_ has the trained ones
  std::unique_ptr<TrainedParameters> spread_;      // with the experts that are trained here alone; null: there are none
};

}  // namespace nibble
