#include "nibble/parallel/mesh.h"

#include <string>

#include "nibble/core/base/error.h"

namespace nibble {

Mesh::Mesh(const MeshShape& shape, Communicator& world) : shape_(shape), world_(world) {
  if (shape.ranks() != world.size()) {
    const std::string product = std::to_string(shape.pipeline) + " x " + std::to_string(shape.replicate) + " x " +
                                std::to_string(shape.shard) + " = " + std::to_string(shape.ranks());
    throw UsageError("pipeline x replicate x shard is " + product + ", the job has " + std::to_string(world.size()) +
                         (world.size() == 1 ? " rank" : " ranks"),
                     "start it with nibble launch -n " + std::to_string(shape.ranks()) +
                         " -- train ..., or change the "
                         "degrees",
                     "parallel");
  }
  const int shard = static_cast<int>(shape.shard), data = static_cast<int>(shape.data());
  const int rank = world.rank(), stage = rank / data;
  pipeline_ = world.split(rank % data, stage);
  data_ = world.split(stage, rank);
  shards_ = world.split(rank / shard, rank);
  replicas_ = world.split(stage * shard + rank % shard, rank);
}

}  // namespace nibble
