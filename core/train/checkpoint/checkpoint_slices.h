#pragma once
// Slices of tensors in files: written by one number of ranks, read by any other.

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/train/checkpoint/checkpoint.h"

namespace nibble::detail {

/// Writes slices (f32) as one safetensors file; shape and offset of each go to the metadata entry "slices".
void write_slices(const std::filesystem::path& file, const std::vector<CheckpointSlice>& slices);

/// Size of the file that write_slices would write.
uint64_t bytes_of_file(const std::vector<CheckpointSlice>& slices);

/// Fills `wanted` from the slices in `files`, however they are sharded. `what` names the kind of tensor in messages.
/// Throws InputError (load_checkpoint_tensors says when).
void read_slices(const std::vector<std::filesystem::path>& files, const std::string& what,
                 const std::vector<CheckpointSlice>& wanted);

/// Copies what two boxes of one global tensor share from `from` to `to`; returns the number of elements.
int64_t copy_overlap(const CheckpointSlice& from, const CheckpointSlice& to);

}  // namespace nibble::detail
