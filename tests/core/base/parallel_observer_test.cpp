#include "nibble/core/base/parallel_observer.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/piece_progress.h"

namespace nibble {
namespace {

// Writes down what it is told.
struct Log : ParallelObserver {
  using ParallelObserver::ParallelObserver;
  void begin_section(int64_t pieces, const void* code) override {
    events.push_back("section of " + std::to_string(pieces));
    codes.push_back(code);
  }
  void end_piece() override { events.push_back("end of piece"); }
  void end_section() override { events.push_back("end of section"); }
  void step(const void* progress, int64_t stage, bool waits) override {
    events.push_back((waits ? "waited for " : "reached ") + std::to_string(stage));
    progresses.push_back(progress);
  }
  std::vector<std::string> events;
  std::vector<const void*> codes, progresses;
};

TEST(ParallelObserver, PiecesRunInOrderOnItsThread) {
  Log log(7);
  EXPECT_EQ(threads(), 7);
  EXPECT_EQ(log.workers(), 7);
  const std::thread::id own = std::this_thread::get_id();
  const auto body = [&](int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), own);
    log.events.push_back(std::to_string(begin) + " to " + std::to_string(end));
  };
  parallel_for(5, 2, body);
  EXPECT_EQ(log.events, (std::vector<std::string>{"section of 3", "0 to 2", "end of piece", "2 to 4", "end of piece",
                                                  "4 to 5", "end of piece", "end of section"}));
}

TEST(ParallelObserver, HearsNothingOfASinglePiece) {
  Log log(7);
  parallel_for(5, 5, [](int64_t, int64_t) {});
  EXPECT_TRUE(log.events.empty());
}

TEST(ParallelObserver, SectionsAreKnownByTheCodeOfTheirPieces) {
  Log log(2);
  std::array<int, 4> values = {};
  for (int time = 0; time < 2; ++time) {
    parallel_for(4, 1, [&](int64_t i, int64_t) { ++values[static_cast<size_t>(i)]; });
  }
  parallel_for(4, 1, [&](int64_t i, int64_t) { values[static_cast<size_t>(i)] *= 2; });
  EXPECT_EQ(values, (std::array<int, 4>{4, 4, 4, 4}));
  ASSERT_EQ(log.codes.size(), 3u);
  EXPECT_EQ(log.codes[0], log.codes[1]);
  EXPECT_NE(log.codes[0], log.codes[2]);
}

TEST(ParallelObserver, HearsOfStagesThatPiecesReachAndWaitFor) {
  Log log(2);
  std::array<PieceProgress, 2> progress;
  parallel_for(2, 1, [&](int64_t piece, int64_t) {
    if (piece == 0) return progress[0].reach(3);
    progress[0].wait_for(2);
    progress[1].reach(1);
  });
  EXPECT_EQ(log.events, (std::vector<std::string>{"section of 2", "reached 3", "end of piece", "waited for 2",
                                                  "reached 1", "end of piece", "end of section"}));
  EXPECT_EQ(log.progresses, (std::vector<const void*>{&progress[0], &progress[0], &progress[1]}));
}

TEST(ParallelObserver, IsTheOnlyOneOfItsThread) {
  Log log(2);
  EXPECT_THROW(Log(3), std::logic_error);
  EXPECT_EQ(ParallelObserver::active(), &log) << "the second leaves the first in place";
  EXPECT_EQ(threads(), 2);
  std::thread([] {
    EXPECT_EQ(ParallelObserver::active(), nullptr);
    const Log other(3);
    EXPECT_EQ(ParallelObserver::active(), &other);
  }).join();
  EXPECT_EQ(ParallelObserver::active(), &log);
}

TEST(ParallelObserver, NeedsAWorker) { EXPECT_THROW(Log(0), std::logic_error); }

TEST(ParallelObserver, ThreadsAreAsBeforeWhenItIsGone) {
  const int before = threads();
  {
    const Log log(before + 5);
    EXPECT_EQ(threads(), before + 5);
  }
  EXPECT_EQ(ParallelObserver::active(), nullptr);
  EXPECT_EQ(threads(), before);
}

}  // namespace
}  // namespace nibble
