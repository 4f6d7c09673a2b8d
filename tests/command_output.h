#pragma once
// What a command says, and how it ends.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace nibble::test {

struct CommandOutput {
  int code = -1;  ///< exit code, or as a shell says it: 128 and the signal that ended it
  std::string text;
};

/// Runs `command` through a shell; standard output, or with " 2>&1" in the command both streams.
inline CommandOutput output_of(const std::string& command) {
  CommandOutput output;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> piece{};
  while (const size_t got = pipe ? std::fread(piece.data(), 1, piece.size(), pipe) : 0) {
    output.text.append(piece.data(), got);
  }
  const int status = pipe ? pclose(pipe) : -1;
  if (status != -1) output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace nibble::test
