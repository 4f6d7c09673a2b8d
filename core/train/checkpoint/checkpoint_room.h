#pragma once
// What a save does where it finds no space, and what it may remove then.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "nibble/core/train/checkpoint/checkpoint.h"

namespace nibble {

/// Bytes in which most file systems allocate files; estimates are rounded up to whole ones.
inline constexpr uint64_t kDiskBlock = 4096;

/// What save_checkpoint takes on a disk, of all ranks together (who all call this), in blocks: headers, recipe, state,
/// manifest and directory included.
uint64_t checkpoint_bytes(const TrainingState& state, const std::vector<CheckpointSlice>& trainable,
                          const std::vector<CheckpointSlice>& optimizer, Communicator& ranks);

/// What save() returns; where it finds no space (NoSpaceError), it is called again as long as make_room() made some.
std::filesystem::path save_in_room(const std::function<std::filesystem::path()>& save,
                                   const std::function<bool()>& make_room);

/// Whether nibble wrote `path`, damaged or not, or what a removal that was interrupted left of it.
bool is_checkpoint(const std::filesystem::path& path);

/// Removes a directory, out of sight first, so that nobody meets half of it. Throws IoError.
void remove_directory(const std::filesystem::path& path);

/// Removes the oldest checkpoint of `directory` and returns its step, but never the newest that verifies nor, with
/// keep_best, the best one that this knows; nothing where there is no other. Throws as newest_checkpoint.
std::optional<int64_t> remove_oldest_checkpoint(const std::filesystem::path& directory, bool keep_best);

/// Runs `write` on every rank and throws on all of them when it threw an IoError or a NumericError on one.
void write_together(Communicator& ranks, const std::function<void()>& write);

}  // namespace nibble
