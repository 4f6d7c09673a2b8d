#include "nibble/core/io/processes/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace nibble {
namespace {

TEST(ChildProcess, SaysHowItsProgramEnded) {
  EXPECT_EQ(exit_code_of(ChildProcess({"sh", "-c", "exit 3"}, {}).wait()), 3);
  EXPECT_EQ(exit_code_of(ChildProcess({"sh", "-c", "kill -9 $$"}, {}).wait()), 128 + SIGKILL);
}

TEST(ChildProcess, IsWaitedForWhereNobodyKeepsHowItEnded) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  ChildProcess child({"sh", "-c", "exit 3"}, {});
  EXPECT_EQ(exit_code_of(child.wait()), 127);
  EXPECT_TRUE(child.ended());
  signal(SIGCHLD, before);
}

TEST(ChildProcess, StartsNoDirectory) {
  EXPECT_TRUE(is_program("sh"));
  EXPECT_TRUE(is_program("/bin/sh"));
  EXPECT_FALSE(is_program("/bin"));
}

}  // namespace
}  // namespace nibble
