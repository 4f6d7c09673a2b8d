#pragma once
// What Run::open decides before anything is changed.

#include <memory>
#include <optional>

#include "nibble/core/io/directory_lock.h"
#include "nibble/core/train/run.h"

namespace nibble::detail {

/// Makes the directory, checks that it can be written, locks it and sweeps what interrupted saves left.
std::unique_ptr<DirectoryLock> claim_directory(const std::filesystem::path& directory);

/// The checkpoint to start from, or nothing to start at the beginning. Throws as Run::open.
std::optional<FoundCheckpoint> choose_start(const RunOptions& options, const Observer& observer);

/// Throws UsageError listing every setting that differs from the checkpoint's; with force, tells the observer instead.
void compare_settings(const RunOptions& options, const TrainingState& state, const Observer& observer);

/// Removes what an earlier run left and this one, which starts from `start`, does not continue.
void clear_for(const RunOptions& options, const std::optional<FoundCheckpoint>& start);

}  // namespace nibble::detail
