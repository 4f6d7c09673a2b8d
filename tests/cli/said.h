#pragma once
// What a command says, and how it ends.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace nibble::test {

struct Said {
  int code = -1;
  std::string text;
};

/// Runs `command` through a shell; standard output, or with " 2>&1" in the command both streams.
inline Said said_by(const std::string& command) {
  Said output;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> piece{};
  while (pipe && std::fgets(piece.data(), piece.size(), pipe)) output.text += piece.data();
  const int status = pipe ? pclose(pipe) : -1;
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

}  // namespace nibble::test
