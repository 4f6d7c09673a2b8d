#include "nibble/parallel/sharding/flat_layout.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(FlatLayout, ShardsCoverEveryElementOnceAndMeetAtWholeGrains) {
  const std::vector<int64_t> sizes = {5, 1000, 64, 4096, 1, 777};
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const FlatLayout layout(sizes, ranks, 16, 128);
    std::vector<int64_t> covered(sizes.size());
    for (int r = 0; r < ranks; ++r) {
      for (const FlatPart& part : layout.parts(r)) {
        EXPECT_EQ(part.begin, covered[part.tensor]) << "in order";
        EXPECT_EQ(part.begin % 128, 0);
        EXPECT_EQ(part.at, layout.offset(part.tensor) + part.begin);
        covered[part.tensor] = part.end;
      }
    }
    EXPECT_EQ(covered, sizes) << ranks;
    EXPECT_EQ(layout.shard_bounds().back(), layout.size());
  }
}

TEST(FlatLayout, ShardsAreOfEqualSizeUpToAGrain) {
  const FlatLayout layout({100'000, 100'000, 100'000}, 4, 16, 128);
  for (int r = 0; r < 4; ++r) {
    const auto bounds = layout.shard_bounds();
    EXPECT_NEAR(static_cast<double>(bounds[static_cast<size_t>(r) + 1] - bounds[static_cast<size_t>(r)]), 75'000, 160);
  }
}

TEST(FlatLayout, MoreRanksThanElementsLeaveSomeWithNothing) {
  const FlatLayout layout({3}, 4, 16, 128);
  int holders = 0;
  for (int r = 0; r < 4; ++r) holders += !layout.parts(r).empty();
  EXPECT_EQ(holders, 1);
}

}  // namespace
}  // namespace nibble
