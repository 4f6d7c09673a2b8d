#pragma once
// From the shards of tensor-parallel ranks to global tensors: in checkpoints, and for export.

#include <vector>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/nn/shard_spec.h"
#include "nibble/core/train/checkpoint/checkpoint.h"

namespace nibble {

/// `slice`, a box of a shard, as boxes of the global tensor; they share its bytes. Itself where `spec` is nothing.
std::vector<CheckpointSlice> global_slices(const CheckpointSlice& slice, const ShardSpec& spec);

/// The global tensor of which every rank of `ranks` has the shard `spec`, on the first of them; an undefined tensor on
/// the others. Called by all of them.
Tensor gather_on_first(Communicator& ranks, const std::string& name, const Tensor& shard, const ShardSpec& spec,
                       MemoryPool& pool);

}  // namespace nibble
