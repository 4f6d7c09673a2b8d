#pragma once
// From the parts that tensor-parallel ranks hold to whole tensors: in checkpoints, and for export.

#include <vector>

#include "nibble/core/train/checkpoint.h"
#include "nibble/parallel/mesh.h"

namespace nibble {

/// `slice`, a box of a part, as boxes of the whole that the part was cut from; they share its bytes. Itself where `cut`
/// is nothing.
std::vector<CheckpointSlice> slices_of_whole(const CheckpointSlice& slice, const Cut& cut);

/// The whole of a tensor of which every rank of `ranks` has the part `cut`, on the first of them; an undefined tensor
/// on the others. Called by all of them.
Tensor whole_on_first(Communicator& ranks, const std::string& name, const Tensor& part, const Cut& cut,
                      MemoryPool& pool);

}  // namespace nibble
