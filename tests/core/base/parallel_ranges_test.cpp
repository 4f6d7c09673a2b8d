#include "nibble/core/base/parallel_ranges.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace nibble {
namespace {

TEST(ParallelRanges, CoverEverythingOnceInPiecesOfWholeGrains) {
  const int before = threads();
  for (int team : {1, 2, 5}) {
    set_threads(team);
    for (int64_t count : {0, 1, 31, 32, 33, 1000, 4096}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      parallel_ranges(count, 32, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_EQ(begin % 32, 0);
        EXPECT_TRUE(end % 32 == 0 || end == count);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const std::atomic<int>& times : seen) ASSERT_EQ(times, 1) << team << " threads, " << count;
    }
  }
  set_threads(before);
}

TEST(ParallelRanges, RethrowWhatAPieceThrows) {
  EXPECT_THROW(parallel_ranges(1000, 1,
                               [](int64_t begin, int64_t) {
                                 if (begin == 0) throw std::runtime_error("first");
                               }),
               std::runtime_error);
}

TEST(SharedRange, GivesPiecesFromBothEndsUntilNothingIsLeft) {
  SharedRange range;
  range.set(10, 30);
  const SharedRange::Taken front = range.take_front(), back = range.take_back();
  EXPECT_EQ(front.begin, 10);
  EXPECT_EQ(front.end, 15);
  EXPECT_EQ(back.begin, 23);
  EXPECT_EQ(back.end, 30);
  int64_t next = 15;
  for (SharedRange::Taken taken = range.take_front(); taken.begin != taken.end; taken = range.take_front()) {
    EXPECT_EQ(taken.begin, next);
    next = taken.end;
  }
  EXPECT_EQ(next, 23);
  const SharedRange::Taken none = range.take_back();
  EXPECT_EQ(none.begin, none.end);
}

}  // namespace
}  // namespace nibble
