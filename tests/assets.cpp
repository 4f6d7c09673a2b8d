#include "nibble/tests/assets.h"

#include <cstdlib>
#include <fstream>

// The only source of the tests that is compiled with paths of this build: a compiler cache knows the others anywhere.
namespace nibble {

const char* const kSourceDir = NIBBLE_SOURCE_DIR;
const char* const kProgram = NIBBLE_PROGRAM;

namespace test {

std::filesystem::path data_path(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(kSourceDir) / "tests/data" / name;
  EXPECT_TRUE(std::filesystem::exists(path)) << path << " is missing";
  return path;
}

std::vector<std::string> data_lines(const std::string& name) {
  std::ifstream file(data_path(name));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::filesystem::path find_asset(const std::string& name) {
  const char* set = std::getenv("NIBBLE_TEST_ASSETS");
  const std::filesystem::path path = std::filesystem::path(set != nullptr && *set ? set : NIBBLE_DEFAULT_ASSETS) / name;
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

}  // namespace test
}  // namespace nibble
