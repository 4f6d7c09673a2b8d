#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "nibble/core/base/error.h"
#include "nibble/core/train/run/run.h"
#include "nibble/core/train/run/stop_signal.h"
#include "nibble/tests/core/train/toy.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

/// Steps 1 and 2, in which two signals come when the save of step 1 behind them has failed: a file is in the place of
/// the checkpoints. `is_removed`: it is gone before the stop saves.
void stop_twice(const fs::path& directory, bool is_removed) {
  StopSignal stop(StopSignal::End::resumable, StopPolicy::at_once, true);
  std::atomic<bool> has_failed = false;
  Observer observer;
  stop.watch(observer);
  observer.on_stop_policy = [&, trains = std::this_thread::get_id()](StopPolicy policy) {
    stop.set_policy(policy);
    if (std::this_thread::get_id() == trains) return;
    has_failed = true;
    has_failed.notify_all();
  };
  observer.on_message = [&](const std::string&) {
    if (is_removed) fs::remove(directory / "checkpoints");
  };
  RunOptions options;
  options.dir = directory;
  options.save_every = {1, 0};
  options.total_steps = 10;
  options.recipe = "{}\n";
  test::ToyRank rank;
  Run run = Run::open(options, rank.context, observer);
  test::ToyModel model(rank.pool);
  Optimizer optimizer(model.parameters(), {}, rank.pool);
  run.restore(optimizer);
  while (run.next_step()) {
    if (run.step() == 1) test::write_bytes(directory / "checkpoints", "in the way");
    if (run.step() == 2) {
      has_failed.wait(false);
      raise(SIGTERM);
      raise(SIGINT);
    }
    StepResult result;
    result.updated = true;
    run.log(result, 0.01);
    run.checkpoint_if_due(optimizer);
  }
}

TEST(StoppedRun, SavesWhereTheSaveBehindTheTrainingFailedHoweverManySignalsWait) {
  for (const bool is_removed : {true, false}) {
    const test::TemporaryDirectory directory;
    const pid_t child = fork();
    if (child == 0) {
      try {
        stop_twice(directory / "out", is_removed);
      } catch (const Error& error) {
        _exit(error.exit_code());
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, is_removed ? 75 : 4);
    EXPECT_EQ(fs::exists(directory / "out/checkpoints/step-2"), is_removed);
  }
}

}  // namespace
}  // namespace nibble
