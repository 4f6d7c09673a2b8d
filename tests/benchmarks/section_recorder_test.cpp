#include "nibble/benchmarks/section_recorder.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_ranges.h"
#include "nibble/core/base/piece_progress.h"

namespace nibble::benchmarks {
namespace {

TEST(SectionRecorder, RecordsThePiecesThatSoManyThreadsGet) {
  SectionRecorder recorder(7);
  EXPECT_EQ(threads(), 7);
  std::vector<int> order;  // without a lock: all on this thread
  const auto take = [&](int64_t begin, int64_t) { order.push_back(static_cast<int>(begin)); };
  parallel_for(10, 2, take);
  parallel_for(10, 10, take);  // one piece: between sections
  parallel_ranges(1000, 1, [](int64_t begin, int64_t end) { EXPECT_LE(end - begin, 1000 / 7 + 1); });
  const std::vector<ParallelSection> sections = recorder.finish();
  ASSERT_EQ(sections.size(), 3u);
  EXPECT_EQ(sections[0].pieces.size(), 5u);
  EXPECT_EQ(sections[1].pieces.size(), 7u);
  EXPECT_TRUE(sections[2].pieces.empty());
  EXPECT_EQ(order, (std::vector<int>{0, 2, 4, 6, 8, 0}));
  EXPECT_NE(sections[0].code, sections[1].code);
  EXPECT_TRUE(recorder.finish().front().pieces.empty());
}

TEST(SectionRecorder, RecordsWhatPiecesWaitFor) {
  SectionRecorder recorder(2);
  const auto progress = std::make_unique<PieceProgress[]>(3);
  parallel_for(3, 1, [&](int64_t piece, int64_t) {
    if (piece > 0) progress[static_cast<size_t>(piece - 1)].wait_for(2);
    for (int64_t stage = 1; stage <= 2; ++stage) progress[static_cast<size_t>(piece)].reach(stage);
  });
  const std::vector<ParallelSection::Step> steps = recorder.finish().front().steps;
  ASSERT_EQ(steps.size(), 8u);
  EXPECT_EQ(steps[2].piece, 1);
  EXPECT_TRUE(steps[2].waits);
  EXPECT_EQ(steps[2].progress, &progress[0]);
  EXPECT_EQ(steps[2].stage, 2);
  EXPECT_EQ(steps[4].progress, &progress[1]);
  EXPECT_FALSE(steps[4].waits);
}

}  // namespace
}  // namespace nibble::benchmarks
