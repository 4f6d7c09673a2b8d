#pragma once
// Trained parameters that differ by rank: experts that only some ranks of the data axes have.

#include <memory>

#include "nibble/parallel/data/tree_sum.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/trained_parameters.h"

namespace nibble {

/// What a rank trains of a Decoder: `common`, which all ranks of the data axes have, and `experts`, whole, of which the
/// ranks of mesh.expert_replicas() have copies and those of mesh.experts() others. These give their experts the
/// gradients of all their tokens (ExpertExchange), so that only copies are summed. `experts` are made trainable where
/// they are not yet; of a layer's `number` of experts they are those of Linears, for every expert the same ones, or
/// some matrices of a tensor of all. All but `experts` must outlive what is returned.
std::unique_ptr<TrainedParameters> with_spread_experts(TrainedParameters& common,
                                                       const std::vector<Parameter*>& experts, int64_t number,
                                                       const Wire& wire, const Mesh& mesh, MemoryPool& pool);

}  // namespace nibble
