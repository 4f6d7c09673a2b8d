// Efficiencies of sections whose times are known by hand.

#include "nibble/benchmarks/replay.h"

#include <gtest/gtest.h>

#include "nibble/core/base/parallel.h"

namespace nibble::benchmarks {
namespace {

const void* const kCode = reinterpret_cast<const void*>(0x10);

ParallelSection section(double gap, std::vector<double> pieces, std::vector<ParallelSection::Step> steps = {}) {
  return {kCode, gap, std::move(pieces), std::move(steps)};
}

TEST(Replay, GapsRunOnOneWorkerAndPiecesOnAll) {
  const std::vector<ParallelSection> step = {section(1, {1, 1, 1, 1}), section(1, {})};
  const Replay two = replay(step, 2, 0), four = replay(step, 4, 0), eight = replay(step, 8, 0);
  EXPECT_DOUBLE_EQ(two.makespan, 4);
  EXPECT_DOUBLE_EQ(two.efficiency(), 6.0 / (2 * 4));
  EXPECT_DOUBLE_EQ(four.makespan, 3);
  EXPECT_DOUBLE_EQ(four.efficiency(), 6.0 / (4 * 3));
  EXPECT_DOUBLE_EQ(eight.makespan, 3);
  EXPECT_DOUBLE_EQ(eight.efficiency(), 6.0 / (8 * 3));
  EXPECT_DOUBLE_EQ(replay(step, 1, 1).efficiency(), 1);  // nobody to call
}

TEST(Replay, WorkersTakePiecesInOrderWhenTheyAreFree) {
  // Two workers: 3 | 1, then the second takes 2, and whoever is free first (the first and the second at 3) takes 4.
  EXPECT_DOUBLE_EQ(replay(std::vector{section(0, {3, 1, 2, 4})}, 2, 0).makespan, 7);
  EXPECT_DOUBLE_EQ(replay(std::vector{section(0, {4, 3, 2, 1})}, 2, 0).makespan, 5);
}

TEST(Replay, EverySectionCostsItsStartAndEnd) {
  const std::vector<ParallelSection> step = {section(0, {2, 2}), section(0, {2, 2}), section(0, {})};
  const Replay result = replay(step, 2, 0.5);
  EXPECT_DOUBLE_EQ(result.makespan, 5);
  EXPECT_DOUBLE_EQ(result.overhead, 1);
  EXPECT_DOUBLE_EQ(result.efficiency(), 8.0 / (2 * 5));
}

// Pieces of two steps: the second one's first step waits for the first one's second.
TEST(Replay, APieceWaitsForTheStageOfAnother) {
  const int first = 0;
  const std::vector<ParallelSection> step = {
      section(0, {0, 1}, {{0, 1, &first, 1, false}, {0, 1, &first, 2, false}, {1, 0.5, &first, 2, true}})};
  const Replay result = replay(step, 2, 0);
  EXPECT_DOUBLE_EQ(result.makespan, 3);
  EXPECT_DOUBLE_EQ(result.parts[0].waiting, 1.5);
  EXPECT_DOUBLE_EQ(result.parts[0].idle, 1);
  EXPECT_DOUBLE_EQ(result.efficiency(), 3.5 / (2 * 3));
}

TEST(Replay, TheShorterTimeOfEveryPieceCounts) {
  std::vector<ParallelSection> step = {{kCode, 1, {5, 2}, {}}};
  keep_shortest(step, std::vector<ParallelSection>{{kCode, 2, {3, 4}, {}}});
  EXPECT_EQ(step[0].gap, 1);
  EXPECT_EQ(step[0].pieces, (std::vector<double>{3, 2}));
  EXPECT_ANY_THROW(keep_shortest(step, std::vector<ParallelSection>{{kCode, 2, {3}, {}}}));
}

TEST(Replay, NamesWhatCostsMost) {
  const std::vector<ParallelSection> step = {section(1, {8}), section(0, {1, 1}), section(3, {})};
  const std::string table = costs_table(step, replay(step, 2, 0), 1);
  EXPECT_NE(table.find("| 0x10 | 2 | 2 |"), std::string::npos) << table;
  EXPECT_NE(table.find("| 0x10 to the end | 1 | 3000000.0 |"), std::string::npos) << table;
}

void add_one(std::vector<int>& values) {
  parallel_for(std::ssize(values), 1, [&](int64_t i, int64_t) { ++values[static_cast<size_t>(i)]; });
}

TEST(Replay, SectionsAreNamedByTheirFunction) {
  std::vector<int> values(3);
  SectionRecorder recorder(3);
  add_one(values);
  EXPECT_EQ(section_name(recorder.finish().front().code), "add_one");
}

}  // namespace
}  // namespace nibble::benchmarks
