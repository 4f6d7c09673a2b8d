// `nibble train` as a process: signals, exit codes, what is left behind.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A small LoRA run of the program, its standard error in a file.
struct Program {
  test::TemporaryDirectory directory;

  fs::path out() const { return directory / "out"; }
  std::string errors() const { return test::read_bytes(directory / "stderr"); }

  void write_recipe(const fs::path& base, int steps) {
    std::string lines;
    for (int i = 0; i < 12; ++i) {
      json ids = json::array();
      for (int t = 0; t < 24; ++t) ids.push_back(3 + (7 * i + t * t) % 500);
      lines += json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    test::write_bytes(directory / "data.jsonl", lines);
    const json recipe = {
        {"model", {{"path", base.string()}}},
        {"adapter", {{"r", 4}, {"lora_dropout", 0.1}}},
        {"data", {{"train", (directory / "data.jsonl").string()}, {"format", "tokens"}, {"pack", false}}},
        {"train", {{"steps", steps}, {"microbatch_size", 2}, {"save_every", 20}, {"threads", 1}}},
        {"optimizer", {{"lr", 1e-3}, {"schedule", "constant"}}},
        {"output", {{"dir", out().string()}}}};
    test::write_bytes(directory / "recipe.json", recipe.dump());
  }

  /// Starts `nibble train`; a closed standard output when asked.
  pid_t start(const std::vector<std::string>& overrides = {}, bool close_output = false) const {
    std::vector<std::string> words = {kProgram, "train", (directory / "recipe.json").string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string errors_path = (directory / "stderr").string();
    const pid_t child = fork();
    if (child != 0) return child;
    const int errors_file = open(errors_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(errors_file, 2);
    if (close_output) {
      close(1);
      close(2);
    }
    execv(arguments[0], arguments.data());
    _exit(127);
  }

  /// Exit code, or minus the signal that ended it.
  static int wait(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  int64_t lines() const {
    const std::string text = test::read_bytes(out() / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }

  /// Waits until metrics.jsonl has `count` lines, or the process has ended.
  void wait_for_lines(pid_t child, int64_t count) const {
    siginfo_t ended = {};
    while (lines() < count && waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::string metrics() const {
    const std::regex timed(R"re(,"(tokens_per_second|peak_memory_bytes|seconds)":[0-9.e+-]+)re");
    return std::regex_replace(test::read_bytes(out() / "metrics.jsonl"), timed, "");
  }
  std::string adapter() const { return test::read_bytes(out() / "adapter" / "adapter_model.safetensors"); }
};

TEST(TrainCommand, SignalsAndKillsInTheMiddleDoNotChangeTheResult) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Program parts;
  parts.write_recipe(base, 1'000'000'000);  // what ends it is the signal
  int64_t done = 0;
  for (const int number : {SIGTERM, SIGKILL, SIGUSR1, SIGINT}) {
    const pid_t child = parts.start();
    parts.wait_for_lines(child, done + 15);
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
  program.wait_for_lines(first, 1);
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
