#pragma once
// How the ranks of a run are arranged: pipeline x replicate x shard x tensor.

#include <cstdint>
#include <memory>
#include <utility>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// Degrees. Their product is the number of ranks.
struct MeshShape {
  int64_t pipeline = 1;   ///< stages
  int64_t replicate = 1;  ///< copies of the model (of a stage)
  int64_t shard = 1;      ///< ranks that share one copy's bytes
  int64_t tensor = 1;     ///< ranks that compute every layer together
  int64_t experts = 1;    ///< of the ranks of the data axes, how many share the experts: divides replicate x shard

  int64_t ranks() const { return pipeline * replicate * shard * tensor; }
  /// Ranks that work on different microbatches.
  int64_t data() const { return replicate * shard; }
  /// Throws UsageError unless `experts` divides the data axes and goes with the other degrees.
  void check_experts() const;
};

/// The groups that one rank is in, see Mesh.
struct MeshGroups {
  std::unique_ptr<Communicator> pipeline, replicas, shards, data, tensor, experts, expert_replicas;
};

/// Rank ((p * replicate + r) * shard + s) * tensor + t has stage p, copy r, shard s and tp_rank t: ranks
/// that exchange most are neighbours. The groups are made once, by all ranks together.
class Mesh {
 public:
  /// Throws UsageError when `world` has another number of ranks, or as check_experts().
  Mesh(const MeshShape& shape, Communicator& world);
  /// Of groups that are there already.
  Mesh(const MeshShape& shape, Communicator& world, MeshGroups groups)
      : shape_(shape), world_(world), groups_(std::move(groups)) {}

  const MeshShape& shape() const { return shape_; }
  Communicator& world() const { return world_; }
  /// The stages of this rank's column, in order. In every group the other coordinates are this rank's.
  Communicator& pipeline() const { return *groups_.pipeline; }
  /// The ranks of this stage that hold the same shard.
  Communicator& replicas() const { return *groups_.replicas; }
  /// The ranks of this stage that share this copy.
  Communicator& shards() const { return *groups_.shards; }
  /// The ranks of this stage that work on different microbatches: replicate x shard.
  Communicator& data() const { return *groups_.data; }
  /// The ranks that have the other shards of this rank's layers and work on the same microbatches.
  Communicator& tensor() const { return *groups_.tensor; }

  /// Neighbours on the data axes of which each has some of the experts of this stage's layers.
  Communicator& experts() const { return *groups_.experts; }
  /// The ranks of this stage that have the same experts, one of every such group, in order.
  Communicator& expert_replicas() const { return *groups_.expert_replicas; }

  int64_t stage() const { return groups_.pipeline->rank(); }

 private:
  MeshShape shape_;
  Communicator& world_;
  MeshGroups groups_;
};

}  // namespace nibble
