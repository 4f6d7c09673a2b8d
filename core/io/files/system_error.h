#pragma once
// The system's error numbers as one line for people.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

/// IoError "path: what: text of `error`; remedy", with the remedy that fits the error number.
inline IoError system_error(const std::filesystem::path& path, const std::string& what, int error) {
  static constexpr std::pair<int, const char*> kRemedies[] = {
      {ENOENT, "check the path"},
      {ENOTDIR, "a part of the path is a file: choose another path"},
      {ENAMETOOLONG, "choose a shorter name"},
      {ELOOP, "its links lead in a circle: choose another path"},
      {EISDIR, "name a file, not a directory"},
      {EACCES, "check the permissions"},
      {EPERM, "check the permissions"},
      {EROFS, "the file system is read-only: choose another place"},
      {ENOSPC, "free space or write elsewhere"},
      {EDQUOT, "free space or write elsewhere"},
      {EFBIG, "the file is larger than this process or file system may write"},
      {EMFILE, "raise the limit of open files (ulimit -n)"},
      {ENFILE, "raise the limit of open files (ulimit -n)"},
      {EIO, "the device or network file system failed: check it and run again"},
      {ESTALE, "the device or network file system failed: check it and run again"},
  };
  std::string remedy;
  for (const auto& [number, text] : kRemedies) {
    if (number == error) remedy = text;
  }
  return IoError(shown_path(path).string(), what + ": " + std::strerror(error), remedy);
}

/// Refusal of a target that may not be replaced.
inline UsageError exists_already(const std::filesystem::path& path) {
  return UsageError("exists already", "choose another name, or remove it (--force replaces what nibble wrote)",
                    path.string());
}

}  // namespace nibble
