#pragma once
// Tensors of several ranks brought to the first one, in order and one at a time: how a model is exported unsharded.

#include <functional>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/parallel/mesh.h"

namespace nibble {

/// Called by all of `ranks`. `mine(give)` calls give() for tensors of this rank; on the first one `take` then gets
/// those of every rank, in rank order.
void collect(Communicator& ranks, MemoryPool& pool,
             const std::function<void(const std::function<void(const NamedTensor&)>& give)>& mine,
             const std::function<void(const NamedTensor&)>& take);

/// Called by all ranks. `mine(give)` calls give() for the tensors of this rank's stage; on the first rank of the job
/// `take` then gets those of every stage, in stage order. Of the copies of a stage the first one sends, of
/// tensor-parallel ranks the first.
void collect_stages(const Mesh& mesh, MemoryPool& pool,
                    const std::function<void(const std::function<void(const NamedTensor&)>& give)>& mine,
                    const std::function<void(const NamedTensor&)>& take);

}  // namespace nibble
