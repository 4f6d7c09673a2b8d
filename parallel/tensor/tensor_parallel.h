#pragma once
// Tensor parallelism (Shoeybi et al. 2019): several ranks compute every layer together, each with a shard of its
// weights.

#include <memory>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/nn/layer_sharding.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/parallel/tensor/tensor_shard.h"

namespace nibble {

/// What a Decoder of this rank is made with, one of `ranks`: its shards (tensor_shard()), and the sums over the ranks,
/// all_reduce_tree's, the same bits on all. Null where there is a single one. trace: gets a span of communication for
/// every sum. ranks, pool and trace must outlive it.
std::unique_ptr<LayerSharding> tensor_parallel(const DecoderConfig& config, Communicator& ranks, MemoryPool& pool,
                                               Trace* trace = nullptr);

}  // namespace nibble
