#pragma once
// How an error that nobody handled ends a program.

#include <exception>
#include <string>

namespace nibble::cli {

/// The exit code, and the line behind "error: ".
struct Failure {
  int exit_code;
  std::string line;
};

/// What `error` means to the user: nibble's errors as they are, refused paths, memory and threads as I/O errors (4),
/// and all else as a defect of nibble (70).
Failure failure_of(const std::exception& error);

}  // namespace nibble::cli
