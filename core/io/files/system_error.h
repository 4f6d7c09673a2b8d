#pragma once
// The system's error numbers as one line for people.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

/// IoError "path: what: text of `error`; remedy", with the remedy that fits the error number.
inline IoError system_error(const std::filesystem::path& path, const std::string& what, int error) {
  std::string remedy;
  switch (error) {
    case ENOENT:
      remedy = "check the path";
      break;
    case EACCES:
    case EPERM:
      remedy = "check the permissions";
      break;
    case EROFS:
      remedy = "the file system is read-only: choose another place";
      break;
    case ENOSPC:
    case EDQUOT:
      remedy = "free space or write elsewhere";
      break;
    case EFBIG:
      remedy = "the file is larger than this process or file system may write";
      break;
    case EMFILE:
    case ENFILE:
      remedy = "raise the limit of open files (ulimit -n)";
      break;
    case EIO:
    case ESTALE:
      remedy = "the device or network file system failed: check it and run again";
      break;
    default:
      break;
  }
  return IoError(shown_path(path).string(), what + ": " + std::strerror(error), remedy);
}

/// Refusal of a target that may not be replaced.
inline UsageError exists_already(const std::filesystem::path& path) {
  return UsageError("exists already", "choose another name, or replace it with --force", path.string());
}

}  // namespace nibble
