#include "nibble/core/base/parallel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "nibble/core/base/piece_progress.h"

namespace nibble {
namespace {

// Sets the number of threads for one test.
class Parallel : public testing::Test {
 protected:
  ~Parallel() override { set_threads(before_); }

 private:
  const int before_ = threads();
};

int64_t sum_to(int64_t count) {
  std::atomic<int64_t> sum = 0;
  parallel_for(count, 1, [&](int64_t k, int64_t) { sum += k + 1; });
  return sum;
}

TEST_F(Parallel, CallsEveryPieceOnce) {
  for (int team : {1, 2, 5, 3}) {
    set_threads(team);
    for (int64_t count : {0, 1, 7, 8, 9, 1000}) {
      std::vector<int> seen(static_cast<size_t>(count));  // no atomics: what pieces write is there when it returns
      parallel_for(count, 8, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(begin % 8, 0);
        EXPECT_EQ(end, std::min(begin + 8, count));
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(count), 1)) << team << " threads";
    }
  }
}

TEST_F(Parallel, ManyShortJobsInTurn) {
  set_threads(4);
  std::vector<int64_t> values(4);
  for (int64_t job = 0; job < 20000; ++job) {
    parallel_for(4, 1, [&](int64_t k, int64_t) { values[static_cast<size_t>(k)] += k + job; });
  }
  for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(values[static_cast<size_t>(k)], 20000 * k + 19999 * 20000 / 2);
}

TEST_F(Parallel, EveryThreadHasATeamOfItsOwn) {
  std::vector<std::thread> callers;
  std::atomic<int> right = 0;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      set_threads(3);
      for (int job = 0; job < 200; ++job) right += sum_to(50) == 50 * 51 / 2;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, 600);
}

TEST_F(Parallel, APieceHandsNothingOut) {
  set_threads(3);
  EXPECT_FALSE(in_parallel());
  std::atomic<int> same = 0;
  parallel_for(6, 1, [&](int64_t, int64_t) {
    EXPECT_TRUE(in_parallel());
    const std::thread::id piece = std::this_thread::get_id();
    parallel_for(5, 1, [&](int64_t, int64_t) { same += std::this_thread::get_id() == piece; });
  });
  EXPECT_EQ(same, 30);
  EXPECT_FALSE(in_parallel());
}

TEST_F(Parallel, RethrowsAfterAllPiecesHaveEnded) {
  set_threads(2);
  std::atomic<int> called = 0;
  EXPECT_THROW(parallel_for(10, 1,
                            [&](int64_t k, int64_t) {
                              ++called;
                              if (k == 3) throw std::runtime_error("third");
                            }),
               std::runtime_error);
  EXPECT_EQ(called, 10);
  EXPECT_EQ(sum_to(10), 55);
}

// In a forked process the threads of the team are gone, as if they never got a core.
TEST_F(Parallel, WaitsForNoThreadThatTookNothing) {
  set_threads(2);
  ASSERT_EQ(sum_to(100), 5050);
  const auto add_up = [] {
    std::fprintf(stderr, "the sum is %lld\n", static_cast<long long>(sum_to(100)));
    _exit(0);
  };
  EXPECT_EXIT(add_up(), testing::ExitedWithCode(0), "the sum is 5050");
}

TEST(PieceProgress, PiecesAddInTheirOrder) {
  const int before = threads();
  set_threads(4);
  for (int round = 0; round < 200; ++round) {
    const auto progress = std::make_unique<PieceProgress[]>(8);
    std::vector<int> order;
    parallel_for(8, 1, [&](int64_t piece, int64_t) {
      if (piece > 0) progress[static_cast<size_t>(piece - 1)].wait_for(1);
      order.push_back(static_cast<int>(piece));
      progress[static_cast<size_t>(piece)].reach(1);
    });
    ASSERT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  set_threads(before);
}

}  // namespace
}  // namespace nibble
