#pragma once
// Where tests find models, data and golden values.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace nibble::test {

/// `name` in tests/data: what the scripts of tests/oracles made, always there.
inline std::filesystem::path data_path(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data" / name;
  EXPECT_TRUE(std::filesystem::exists(path)) << path << " is missing";
  return path;
}

/// The folder `name` of what others published and we cannot make, or an empty path when it is not here.
inline std::filesystem::path find_asset(const std::string& name) {
  const char* set = std::getenv("NIBBLE_TEST_ASSETS");
  const std::filesystem::path path = std::filesystem::path(set != nullptr && *set ? set : NIBBLE_DEFAULT_ASSETS) / name;
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

}  // namespace nibble::test

/// Defines `variable` as the path of asset `name`, or skips the test with a line that says so.
#define NIBBLE_ASSET_OR_SKIP(variable, name)                               \
  const std::filesystem::path variable = ::nibble::test::find_asset(name); \
  if ((variable).empty()) GTEST_SKIP() << "asset " << (name) << " is absent; set NIBBLE_TEST_ASSETS"
