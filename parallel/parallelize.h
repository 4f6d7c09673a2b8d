#pragma once
// Parallelism applied to a plain Decoder from outside.

#include "nibble/parallel/parallel_model.h"

namespace nibble {

/// Applies what the mesh has ranks for, in this order; degree 1 costs nothing. The layers of a pipeline stage
/// (LayerRange) and the shards of a tensor-parallel rank (tensor_parallel()) are chosen before, as the weights are
/// made.
///
/// model: everything trainable is trainable, or (train_everything) still frozen as it was loaded and about to be
/// trained. It is computed with through the hooks this sets. Everything must outlive what is returned.
ParallelModel parallelize(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh,
                          RankContext& rank);

}  // namespace nibble
