#pragma once
// What a command says, and how it ends.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace nibble::test {

struct CommandOutput {
  int code = -1;
  std::string text;
};

/// Runs `command` through a shell; standard output, or with " 2>&1" in the command both streams.
inline CommandOutput output_of(const std::string& command) {
  CommandOutput output;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> piece{};
  while (pipe && std::fgets(piece.data(), piece.size(), pipe)) output.text += piece.data();
  const int status = pipe ? pclose(pipe) : -1;
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

}  // namespace nibble::test
