#pragma once
// Where tests find models, data and golden values.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

extern const char* const kSourceDir;  ///< of the tree that is tested
extern const char* const kProgram;    ///< the nibble that is tested

namespace test {

/// `name` in tests/data: what the scripts of tests/oracles made, always there.
std::filesystem::path data_path(const std::string& name);
std::vector<std::string> data_lines(const std::string& name);

/// The folder `name` of what others published and we cannot make, or an empty path when it is not here.
std::filesystem::path find_asset(const std::string& name);

}  // namespace test
}  // namespace nibble

/// Defines `variable` as the path of asset `name`, or skips the test with a line that says so.
#define NIBBLE_ASSET_OR_SKIP(variable, name)                               \
  const std::filesystem::path variable = ::nibble::test::find_asset(name); \
  if ((variable).empty()) GTEST_SKIP() << "asset " << (name) << " is absent; set NIBBLE_TEST_ASSETS"
