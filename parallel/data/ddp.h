#pragma once
// Data parallelism with whole copies (DDP): every rank computes other microbatches, gradients are summed.

#include <memory>

#include "nibble/parallel/data/tree_sum.h"
#include "nibble/parallel/trained_parameters.h"

namespace nibble {

/// Makes `trained`, of which every one of `ranks` has a copy, trainable where it is not yet. Where there are others to
/// sum with, all gradients lie side by side, so that they are summed without copies, and those of which tensor-parallel
/// ranks have one term each lie last. ranks and pool must outlive what is returned.
std::unique_ptr<TrainedParameters> replicate(const std::vector<Parameter*>& trained, const Wire& wire,
                                             Communicator& ranks, MemoryPool& pool);

}  // namespace nibble
