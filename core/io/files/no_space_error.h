#pragma once
#include <cerrno>

#include "nibble/core/io/files/system_error.h"

namespace nibble {

/// No space is left on the device, or a quota is used up: what succeeds after something was removed.
class NoSpaceError : public IoError {
 public:
  explicit NoSpaceError(const IoError& error) : IoError(error) {}
};

/// Throws system_error(...), as a NoSpaceError where `error` is one.
[[noreturn]] inline void throw_system_error(const std::filesystem::path& path, const std::string& what, int error) {
  const IoError thrown = system_error(path, what, error);
  if (error == ENOSPC || error == EDQUOT) throw NoSpaceError(thrown);
  throw thrown;
}

}  // namespace nibble
