// `nibble train` as a process: signals, exit codes, what is left behind.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "nibble/tests/assets.h"
#include "nibble/tests/small_run.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Program : test::SmallRun {
  void write_recipe(const fs::path& base, int steps) const { SmallRun::write_recipe(base, steps, "microbatch_size"); }
  /// Starts `nibble train`; a closed standard output when asked.
  pid_t start(std::vector<std::string> overrides = {}, bool close_output = false) {
    overrides.insert(overrides.begin(), {"train", recipe()});
    return SmallRun::start(std::move(overrides), close_output);
  }

  std::string metrics() const {
    const std::regex timed(R"re(,"(tokens_per_second|peak_memory_bytes|seconds)":[0-9.e+-]+)re");
    return std::regex_replace(test::read_bytes(out() / "metrics.jsonl"), timed, "");
  }
};

TEST(TrainCommand, SignalsAndKillsInTheMiddleDoNotChangeTheResult) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Program parts;
  parts.write_recipe(base, 1'000'000'000);  // what ends it is the signal
  int64_t done = 0;
  for (const int number : {SIGTERM, SIGKILL, SIGUSR1, SIGINT}) {
    const pid_t child = parts.start();
    parts.wait_for_lines(done + 15);
    kill(child, number);
    EXPECT_EQ(Program::wait(child), number == SIGKILL ? -SIGKILL : 75) << parts.errors();
    if (number != SIGKILL) {
      EXPECT_NE(parts.errors().find("checkpoint saved; run the same command to continue"), std::string::npos)
          << parts.errors();
    }
    done = parts.lines();
    EXPECT_FALSE(fs::exists(parts.out() / "adapter"));
  }
  const std::string steps = "train.steps=" + std::to_string(done + 5);
  ASSERT_EQ(Program::wait(parts.start({steps})), 0) << parts.errors();
  Program whole;
  whole.write_recipe(base, 1);
  ASSERT_EQ(Program::wait(whole.start({steps})), 0) << whole.errors();
  ASSERT_EQ(whole.lines(), done + 5);
  EXPECT_EQ(parts.metrics(), whole.metrics());
  EXPECT_TRUE(parts.adapter() == whole.adapter());
}

TEST(TrainCommand, ClosedOutputsDoNotStopTraining) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Program program;
  program.write_recipe(base, 3);
  EXPECT_EQ(Program::wait(program.start({}, true)), 0);
  EXPECT_EQ(program.lines(), 3);
}

// What was trained is written: whatever keeps the page from being drawn, the run has ended well.
TEST(TrainCommand, AReportThatCannotBeDrawnIsAWarning) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Program program;
  program.write_recipe(base, 3);
  fs::create_directory(program.out());
  test::write_bytes(program.out() / "samples.jsonl", "{\"step\":1,\"prompt\":1}\n");
  EXPECT_EQ(Program::wait(program.start()), 0) << program.errors();
  EXPECT_NE(program.errors().find("warning: no report: "), std::string::npos) << program.errors();
  EXPECT_TRUE(fs::exists(program.out() / "adapter"));
}

TEST(TrainCommand, SecondRunInTheSameDirectoryIsTurnedAway) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Program program;
  program.write_recipe(base, 100000);
  const pid_t first = program.start();
  program.wait_for_lines(1);
  EXPECT_EQ(Program::wait(program.start()), 4);
  EXPECT_NE(program.errors().find("is in use by another run"), std::string::npos) << program.errors();
  kill(first, SIGKILL);
  EXPECT_EQ(Program::wait(first), -SIGKILL);
}

TEST(TrainCommand, RecipeErrorsAreOneLineAndExitCode2) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Program program;
  program.write_recipe(base, 3);
  EXPECT_EQ(Program::wait(program.start({"train.stepz=3"})), 2);
  EXPECT_EQ(program.errors(), "error: command line: train.stepz: unknown key; did you mean train.steps?\n");
  EXPECT_EQ(Program::wait(program.start({"optimizer.lr=-1"})), 2);
  EXPECT_EQ(program.errors(), "error: command line: optimizer.lr: must be a number from 0, not -1\n");
  EXPECT_FALSE(fs::exists(program.out()));
}

}  // namespace
}  // namespace nibble
