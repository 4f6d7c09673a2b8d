#pragma once
// What Run::open decides before anything is changed.

#include <memory>
#include <optional>

#include "nibble/core/io/files/directory_lock.h"
#include "nibble/core/train/run/run.h"

namespace nibble::detail {

/// The output directory of one run: made where it is missing, probed, locked. One that was made is taken away again
/// unless it was kept: a run that ends before it begins changes nothing.
class Claim {
 public:
  /// Throws IoError where the directory cannot be made or written, or another run has it.
  explicit Claim(const std::filesystem::path& directory);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  void keep();

 private:
  void take_back();

  std::filesystem::path directory_;
  std::vector<std::filesystem::path> made_;  // outermost first
  std::unique_ptr<DirectoryLock> lock_;
};

/// The checkpoint to start from, or nothing to start at the beginning. Throws as Run::open.
std::optional<FoundCheckpoint> choose_start(const RunOptions& options, const Observer& observer);

/// In the name of a setting that is of a file's content: section, this, file.
inline constexpr const char* kFingerprint = ".fingerprint/";

/// Throws UsageError listing every setting that differs from the checkpoint's; with force, warns the observer instead.
/// Of a checkpoint without contents of files (an earlier nibble's) the others are compared, and the observer is warned.
void compare_settings(const RunOptions& options, const TrainingState& state, const Observer& observer);

/// Removes what an earlier run left and this one, which starts from `start`, does not continue.
void clear_for(const RunOptions& options, const std::optional<FoundCheckpoint>& start);

}  // namespace nibble::detail
