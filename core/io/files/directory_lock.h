#pragma once
// One run per directory.

#include <filesystem>
#include <string_view>

namespace nibble {

inline constexpr std::string_view kLockFile = ".nibble.lock";

/// Holds `directory`/.nibble.lock exclusively (flock) until destroyed; the system releases it when the process dies, so
/// there is no stale lock. The file stays, with the process and host of the last holder in it.
class DirectoryLock {
 public:
  /// Throws IoError naming the holder when another process has it, or when the file cannot be made.
  explicit DirectoryLock(const std::filesystem::path& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace nibble
