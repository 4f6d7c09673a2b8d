#include "nibble/cli/processes/own_program.h"

#include <cstdlib>
#include <filesystem>

namespace nibble::cli {

std::string own_program() {
  const char* given = std::getenv("NIBBLE_PROGRAM");
  return given != nullptr ? given : std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace nibble::cli
