#include "nibble/parallel/mesh.h"

#include <string>

#include "nibble/core/base/error.h"

namespace nibble {

void MeshShape::check_experts() const {
  if (experts == 1) return;
  if (tensor > 1) {
    throw UsageError("experts are spread over ranks that have full layers", "leave parallel.tensor out, or this",
                     "parallel.experts");
  }
  if (data() % experts == 0) return;
  throw UsageError(std::to_string(experts) + " does not divide replicate x shard = " + std::to_string(data()) +
                       ", whose ranks share the experts",
                   "use a divisor of it", "parallel.experts");
}

Mesh::Mesh(const MeshShape& shape, Communicator& world) : shape_(shape), world_(world) {
  if (shape.ranks() != world.size()) {
    const std::string product = std::to_string(shape.pipeline) + " x " + std::to_string(shape.replicate) + " x " +
                                std::to_string(shape.shard) + " x " + std::to_string(shape.tensor) + " = " +
                                std::to_string(shape.ranks());
    throw UsageError("pipeline x replicate x shard x tensor is " + product + ", the job has " +
                         std::to_string(world.size()) + (world.size() == 1 ? " rank" : " ranks"),
                     "start it with nibble launch -n " + std::to_string(shape.ranks()) +
                         " -- train ..., or change the "
                         "degrees",
                     "parallel");
  }
  shape.check_experts();
  const int shard = static_cast<int>(shape.shard), tensor = static_cast<int>(shape.tensor);
  const int data = static_cast<int>(shape.data()), rank = world.rank();
  const int stage = rank / (data * tensor), tp_rank = rank % tensor, column = rank / tensor % data;
  groups_.pipeline = world.split(rank % (data * tensor), stage);
  groups_.data = world.split(stage * tensor + tp_rank, rank);
  groups_.shards = world.split((stage * (data / shard) + column / shard) * tensor + tp_rank, rank);
  groups_.replicas = world.split((stage * shard + column % shard) * tensor + tp_rank, rank);
  groups_.tensor = world.split(rank / tensor, rank);
  const int experts = static_cast<int>(shape.experts);
  groups_.experts = world.split((stage * (data / experts) + column / experts) * tensor + tp_rank, rank);
  groups_.expert_replicas = world.split((stage * experts + column % experts) * tensor + tp_rank, rank);
}

}  // namespace nibble
