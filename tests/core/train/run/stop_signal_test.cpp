#include "nibble/core/train/run/stop_signal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/unfinished.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

TEST(StopSignal, FirstSignalIsAFlagAndTheHandlersGoAgain) {
  signal(SIGHUP, SIG_DFL);
  for (const int number : {SIGHUP, SIGTERM, SIGINT, SIGUSR1}) {
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

/// Exit code of a process that does this and then ends with 1, or minus the signal that ended it.
int ended(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(StopSignal, SecondSignalEndsTheProcessWith75) {
  const auto twice = [] {
    const StopSignal stop;
    raise(SIGTERM);
    raise(SIGINT);
  };
  EXPECT_EQ(ended(twice), 75);
}

// As the command of a reward and what it started.
TEST(StopSignal, WhateverLeavesAtOnceKillsTheNotedGroups) {
  const auto left = [](const std::function<void(StopSignal&)>& leaving) {
    int alive[2];  // the processes of the group alone have its end to write
    ASSERT_EQ(pipe(alive), 0);
    const auto working = [&] {
      StopSignal stop;
      const pid_t gone = fork();
      if (gone == 0) _exit(0);
      const pid_t group = fork();
      if (group == 0) {
        setpgid(0, 0);
        for (const int number : {SIGTERM, SIGINT}) signal(number, SIG_IGN);
        for (;;) pause();
      }
      setpgid(group, group);
      close(alive[1]);
      for (const pid_t one : {gone, group}) note_group(one);
      waitpid(gone, nullptr, 0);
      forget_group(gone);
      leaving(stop);
    };
    EXPECT_EQ(ended(working), 75);
    close(alive[1]);
    pollfd over{alive[0], POLLIN, 0};
    EXPECT_EQ(poll(&over, 1, 60000), 1) << "somebody lives";
    close(alive[0]);
  };
  left([](StopSignal&) {
    raise(SIGTERM);
    raise(SIGINT);
  });
  for (const bool third : {true, false}) {
    left([&](StopSignal& stop) {
      stop.set_policy(StopPolicy::finish_save);
      raise(SIGTERM);
      raise(SIGINT);
      if (third) raise(SIGTERM);
      stop.set_policy(StopPolicy::finish_step);
    });
  }
  left([](StopSignal& stop) {
    stop.set_policy(StopPolicy::at_once);
    raise(SIGTERM);
    for (;;) pause();
  });
}

TEST(StopSignal, AnUnsavedStepTakesAThirdOrTheEndOfTheSave) {
  const auto twice = [](bool third, StopPolicy then) {
    StopSignal stop;
    stop.set_policy(StopPolicy::finish_save);
    raise(SIGTERM);
    raise(SIGINT);
    if (third) raise(SIGUSR1);
    stop.set_policy(then);
  };
  EXPECT_EQ(ended([&] { twice(false, StopPolicy::finish_save); }), 1);
  EXPECT_EQ(ended([&] { twice(true, StopPolicy::finish_save); }), 75);
  EXPECT_EQ(ended([&] { twice(false, StopPolicy::finish_step); }), 75);
}

// The shell and the kernel may both tell of a terminal that was closed.
TEST(StopSignal, AHangupIsNoSecondSignal) {
  for (const int first : {SIGHUP, SIGINT}) {
    const auto twice = [&] {
      signal(SIGHUP, SIG_DFL);
      const StopSignal stop;
      raise(first);
      raise(SIGHUP);
    };
    EXPECT_EQ(ended(twice), 1);
  }
}

TEST(StopSignal, AHangupThatIsIgnoredStaysSo) {
  const auto hung_up = [](auto before) {
    signal(SIGHUP, before);
    const StopSignal stop;
    raise(SIGHUP);
    _exit(stop.requested() ? 2 : 3);
  };
  EXPECT_EQ(ended([&] { hung_up(SIG_DFL); }), 2);
  EXPECT_EQ(ended([&] { hung_up(SIG_IGN); }), 3);
}

TEST(StopSignal, AtOnceRemovesWhatIsUnfinished) {
  const test::TemporaryDirectory directory;
  test::write_bytes(directory / "kept", "x");
  for (const StopSignal::End end : {StopSignal::End::by_signal, StopSignal::End::resumable}) {
    const auto writing = [&] {
      const StopSignal stop(end, StopPolicy::at_once);
      AtomicDirectory result(directory / "on" / "the" / "way" / "model");
      test::write_bytes(result.path() / "weights", "half");
      AtomicFile file(directory / "file");
      file.write("half");
      raise(SIGTERM);
      for (;;) pause();
    };
    EXPECT_EQ(ended(writing), end == StopSignal::End::by_signal ? -SIGTERM : 75);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
  }
}

}  // namespace
}  // namespace nibble
