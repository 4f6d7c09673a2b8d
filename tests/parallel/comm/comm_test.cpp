// One suite on every engine: one rank, threads, MPI (this program starts itself under mpirun).

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include "nibble/core/comm/same_everywhere.h"
#include "nibble/parallel/comm/mpi_comm.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/launch.h"
#include "nibble/tests/command_output.h"
#include "nibble/tests/parallel/comm/conformance.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

TEST(SelfComm, Conforms) {
  SelfComm comm;
  test::conforms(comm);
}

class ThreadRanks : public testing::TestWithParam<int> {};

TEST_P(ThreadRanks, Conform) { run_on_threads(GetParam(), test::conforms); }

TEST_P(ThreadRanks, ConformWhenEveryOperationIsDelayedAndCompared) {
  run_on_threads(GetParam(), [](Communicator& comm) {
    comm.settings().max_delay_us = 2000;
    comm.settings().delay_seed = 5;
    comm.settings().check_order = true;
    test::conforms(comm);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadRanks, testing::Values(1, 2, 3, 4));

TEST(ThreadComm, NamesTheSilentRankAndTheOperation) {
  const std::string message = test::error_of<CommError>([] {
    run_on_threads(3, [](Communicator& comm) {
      comm.barrier("together");
      comm.settings().timeout_seconds = 0.2;
      if (comm.rank() != 1) comm.barrier("gradients");
    });
  });
  EXPECT_NE(message.find("gradients"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 1 (last seen in \"together\")"), std::string::npos) << message;
}

TEST(ThreadComm, AFailingRankEndsTheOthers) {
  EXPECT_THROW(run_on_threads(3,
                              [](Communicator& comm) {
                                if (comm.rank() == 2) throw InputError("file", "is bad");
                                comm.barrier("never");
                              }),
               InputError);
}

// Of things that are equal, however many, the ranks speak together once.
TEST(SameEverywhere, ComparesAllAtOnceAndNamesWhatDiffers) {
  run_on_threads(3, [](Communicator& comm) {
    std::map<std::string, std::string> things;
    for (int i = 0; i < 40; ++i) things["thing " + std::to_string(i)] = std::to_string(i);
    require_same_everywhere(comm, things);
    EXPECT_EQ(comm.settings().traffic.size(), 1u);
    if (comm.rank() != 1) things["thing 7"] = "eight";
    const std::string message = test::error_of<UsageError>([&] { require_same_everywhere(comm, things); });
    EXPECT_EQ(message.find("rank 1: has another thing 7 than the other ranks"), 0u) << message;
    things["thing 7"] = "7";
    things[comm.rank() == 2 ? "thing 8" : "thing 9"] += "0";
    EXPECT_NE(test::error_of<UsageError>([&] {
                require_same_everywhere(comm, things);
              }).find("rank 2: has another thing 8 than"),
              std::string::npos);
  });
}

TEST(ThreadComm, OperationsInAnotherOrderAreNamed) {
  const std::string message = test::error_of<CommError>([] {
    run_on_threads(2, [](Communicator& comm) {
      comm.settings().check_order = true;
      comm.barrier(comm.rank() == 0 ? "loss" : "norm");
    });
  });
  EXPECT_NE(message.find("loss"), std::string::npos) << message;
  EXPECT_NE(message.find("norm"), std::string::npos) << message;
}

// ---- MPI ----

/// Runs the disabled test `name` of this program on `ranks` ranks.
test::CommandOutput on_ranks(int ranks, const std::string& name) {
  LaunchOptions options;
  options.ranks = ranks;
  options.root = geteuid() == 0;
  options.launcher = mpi_launcher(mpi_library());
  options.program = std::filesystem::read_symlink("/proc/self/exe").string();
  options.args = {"--gtest_also_run_disabled_tests", "--gtest_filter=OnEveryRank.DISABLED_" + name};
  return test::output_of(shell_line(mpirun_command(options, mpi_library())) + " 2>&1");
}

TEST(OnEveryRank, DISABLED_Conforms) {
  MpiSession session;
  test::conforms(session.world());
  session.world().settings().check_order = true;
  session.world().settings().max_delay_us = 2000;
  test::conforms(session.world());
  session.finish();
}

void stop_one_rank(const std::function<void(Communicator&)>& wait_for_it) {
  MpiSession session;
  Communicator& comm = session.world();
  comm.barrier("together");
  comm.settings().timeout_seconds = 1.5;
  if (comm.rank() == 1) raise(SIGSTOP);
  try {
    wait_for_it(comm);
  } catch (const CommError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    kill(getpid(), 0);
    session.abort(error.exit_code(), [] {});
  }
}

TEST(OnEveryRank, DISABLED_StopsBeforeABarrier) {
  stop_one_rank([](Communicator& comm) { comm.barrier("gradients"); });
}

TEST(OnEveryRank, DISABLED_StopsBeforeASplit) {
  stop_one_rank([](Communicator& comm) { comm.split(0, comm.rank()); });
}

TEST(OnEveryRank, DISABLED_FailsAlike) {
  MpiSession session;
  session.abort(3, [] { std::fprintf(stderr, "error: all of us\n"); });
}

class MpiRanks : public testing::TestWithParam<int> {};

TEST_P(MpiRanks, Conform) {
  const test::CommandOutput output = on_ranks(GetParam(), "Conforms");
  EXPECT_EQ(output.code, 0) << output.text;
}

TEST_P(MpiRanks, FailingAlikeSaySoOnce) {
  const test::CommandOutput output = on_ranks(GetParam(), "FailsAlike");
  EXPECT_EQ(output.code, 3) << output.text;
  const std::string line = "error: all of us";
  const size_t first = output.text.find(line);
  ASSERT_NE(first, std::string::npos) << output.text;
  EXPECT_EQ(output.text.find(line, first + 1), std::string::npos) << output.text;
}

INSTANTIATE_TEST_SUITE_P(Sizes, MpiRanks, testing::Values(2, 3, 4));

void expect_rank_1_named(const std::string& test, const std::string& operation) {
  const test::CommandOutput output = on_ranks(3, test);
  EXPECT_EQ(output.code, 76) << output.text;
  EXPECT_NE(output.text.find("error: rank 1 on host "), std::string::npos) << output.text;
  EXPECT_NE(output.text.find('"' + operation + '"'), std::string::npos) << output.text;
  EXPECT_EQ(output.text.find("error: rank 0"), std::string::npos) << output.text;
  EXPECT_EQ(output.text.find("error: rank 2"), std::string::npos) << output.text;
}

TEST(MpiComm, AStoppedRankIsNamedWithItsHostAndTheJobEndsWithSeventySix) {
  expect_rank_1_named("StopsBeforeABarrier", "gradients");
}

TEST(MpiComm, ARankThatComesToNoSplitIsNamed) { expect_rank_1_named("StopsBeforeASplit", "split"); }

TEST(MpiComm, WithoutALauncherThereIsOneRank) { EXPECT_EQ(launched_ranks(), 1); }

}  // namespace
}  // namespace nibble
