#include "nibble/core/base/cpu_grants.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

constexpr uint32_t kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTiles | kInt8;
constexpr uint64_t kConfiguration = 1u << 17, kData = 1u << 18, kStates = kConfiguration | kData;

bool granted() { return true; }
bool refused() { return false; }
bool asked_in_vain() {
  ADD_FAILURE() << "asked for tiles that are not there";
  return true;
}

TEST(TileGrant, NeedsEveryFeatureBothStatesAndThePermission) {
  EXPECT_TRUE(grants_tiles({.features = kAll, .saved = kStates, .permission = granted}));
  EXPECT_TRUE(grants_tiles({.features = ~0u, .saved = ~uint64_t{0}, .permission = granted}));
  EXPECT_FALSE(grants_tiles({.features = kAll, .saved = kStates, .permission = refused}));
}

TEST(TileGrant, AsksForPermissionOnlyWhereTheCpuAndTheSystemHaveTiles) {
  for (const uint32_t missing : {kBf16, kTiles, kInt8, kAll}) {
    EXPECT_FALSE(grants_tiles({.features = ~missing, .saved = kStates, .permission = asked_in_vain}));
  }
  for (const uint64_t missing : {kConfiguration, kData, kStates}) {
    EXPECT_FALSE(grants_tiles({.features = kAll, .saved = ~missing, .permission = asked_in_vain}));
  }
}

}  // namespace
}  // namespace nibble
