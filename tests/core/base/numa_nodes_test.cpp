#include "nibble/core/base/numa_nodes.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/piece_progress.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

class NumaNodes : public testing::Test {
 protected:
  ~NumaNodes() override { unsetenv("NIBBLE_NUMA"); }

  void write_node(int number, const std::string& cores) const {
    const auto node = sys_.path() / "devices/system/node" / ("node" + std::to_string(number));
    std::filesystem::create_directories(node);
    std::ofstream(node / "cpulist") << cores << "\n";
  }

  const test::TemporaryDirectory sys_;
};

TEST_F(NumaNodes, AreOneWhereTheKernelNamesNone) {
  EXPECT_EQ(numa_nodes("/nowhere").size(), 1u);
  EXPECT_FALSE(numa_nodes("/nowhere").front().empty());
}

TEST_F(NumaNodes, HaveTheCoresThatTheThreadMayUse) {
  const NumaNode all = numa_nodes("/nowhere").front();
  write_node(0, "");  // memory alone
  write_node(1, std::to_string(all.back()) + ",900-1000");
  write_node(10, "1001");
  EXPECT_EQ(numa_nodes(sys_.path()), (std::vector<NumaNode>{{all.back()}}));
}

TEST_F(NumaNodes, StandInTheOrderOfTheirNumbers) {
  const NumaNode all = numa_nodes("/nowhere").front();
  if (all.size() < 2) GTEST_SKIP() << "needs two cores";
  write_node(10, std::to_string(all[0]));
  write_node(2, std::to_string(all[1]));
  EXPECT_EQ(numa_nodes(sys_.path()), (std::vector<NumaNode>{{all[1]}, {all[0]}}));
  setenv("NIBBLE_NUMA", "off", 1);
  EXPECT_EQ(numa_nodes(sys_.path()).size(), 1u);
  setenv("NIBBLE_NUMA", (std::to_string(all[0]) + ":" + std::to_string(all[1])).c_str(), 1);
  EXPECT_EQ(numa_nodes(sys_.path()), (std::vector<NumaNode>{{all[0]}, {all[1]}}));
  for (const char* wrong : {"1-0", "x", "0::1", "0-1 :2", "-1", "100000"}) {
    setenv("NIBBLE_NUMA", wrong, 1);
    EXPECT_THROW(numa_nodes(sys_.path()), UsageError) << wrong;
  }
}

// Each node's threads have pieces of their own, and where these wait for those of another node they get them.
TEST_F(NumaNodes, ThreadsOfATeamStayOnTheirs) {
  const NumaNode all = numa_nodes("/nowhere").front();
  if (all.size() < 2) GTEST_SKIP() << "needs two cores";
  setenv("NIBBLE_NUMA", (std::to_string(all[0]) + ":" + std::to_string(all[1])).c_str(), 1);
  std::thread([&] {  // with a team of its own
    const int before = threads();
    set_threads(2);
    std::atomic<int> wrong = 0, called = 0;
    const std::thread::id caller = std::this_thread::get_id();
    for (int round = 0; round < 500; ++round) {
      std::vector<PieceProgress> progress(8);
      parallel_for(8, 1, [&](int64_t piece, int64_t) {
        if (piece > 0) progress[static_cast<size_t>(piece - 1)].wait_for(1);
        ++called;
        if (std::this_thread::get_id() != caller) wrong += sched_getcpu() != all[1];
        progress[static_cast<size_t>(piece)].reach(1);
      });
    }
    EXPECT_EQ(called, 4000);
    EXPECT_EQ(wrong, 0);
    set_threads(before);
  })
      .join();
}

}  // namespace
}  // namespace nibble
