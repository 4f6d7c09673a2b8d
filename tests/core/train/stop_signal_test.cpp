#include "nibble/core/train/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nibble {
namespace {

TEST(StopSignal, FirstSignalIsAFlagAndTheHandlersGoAgain) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    raise(number);
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.signal(), number);
  }
  struct sigaction now {};
  sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(StopSignal, OneAtATime) {
  const StopSignal stop;
  EXPECT_THROW(StopSignal second, std::logic_error);
}

TEST(StopSignal, SecondSignalEndsTheProcessWith75) {
  const pid_t child = fork();
  if (child == 0) {
    const StopSignal stop;
    raise(SIGTERM);
    raise(SIGINT);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

}  // namespace
}  // namespace nibble
