#pragma once
// A place for files that others read meanwhile.

#include <filesystem>

namespace nibble {

/// A new directory among the system's temporary ones (TMPDIR), removed with all that is in it when this goes, or the
/// process by a signal; what killed processes left, by the next one that makes one. Throws IoError where it cannot be
/// made.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace nibble
