#include "nibble/parallel/parallelize.h"

#include "nibble/core/base/error.h"
#include "nibble/parallel/data/ddp.h"

namespace nibble {

ParallelModel parallelize(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh,
                          RankContext& rank) {
  NIBBLE_CHECK((mesh.tensor().size() > 1) == (model.sharding() != nullptr), "shards are those of tensor_parallel()");
  const MemoryPool::Use use(rank.pool, train_everything ? MemoryUse::base : MemoryUse::adapters);
  ParallelModel result(model, train_everything, options, mesh);
  const bool shards = mesh.shape().shard > 1, shards_trained = shards && (train_everything || options.shard_trainable);
  if (shards) result.sharded_ = shard(model, result.trained_, shards_trained, options, mesh, rank.pool);
  if (!shards_trained) result.replicated_ = replicate(result.trained_, options.wire, mesh, rank.pool);
  return result;
}

}  // namespace nibble
