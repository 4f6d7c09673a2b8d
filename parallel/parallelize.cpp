#include "nibble/parallel/parallelize.h"

#include "nibble/core/base/error.h"
#include "nibble/parallel/data/ddp.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/experts/spread_experts.h"

namespace nibble {

ParallelModel parallelize(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh,
                          RankContext& rank) {
  NIBBLE_CHECK((mesh.tensor().size() > 1) == (model.sharding() != nullptr), "shards are those of tensor_parallel()");
  const MemoryPool::Use use(rank.pool, train_everything ? MemoryUse::base : MemoryUse::adapters);
  ParallelModel result(model, train_everything, options, mesh);
  const std::set<const Parameter*> spread = spread_weights(model);
  std::vector<Parameter*> common, experts;
  for (Parameter* parameter : result.trained_) {
    if (!spread.contains(parameter)) {
      common.push_back(parameter);
      continue;
    }
    experts.push_back(parameter);
    if (!parameter->shard) result.own_experts_.insert(parameter->name);
  }
  const bool shards = mesh.shape().shard > 1, shards_trained = shards && (train_everything || options.shard_trainable);
  if (shards) result.sharded_ = shard(model, common, shards_trained, options, mesh, rank.pool);
  if (!shards_trained) result.replicated_ = replicate(common, options.wire, mesh.data(), rank.pool);
  if (!experts.empty()) {
    result.spread_ =
        with_spread_experts(result.common(), experts, model.config().experts->experts, options.wire, mesh, rank.pool);
  }
  return result;
}

}  // namespace nibble
