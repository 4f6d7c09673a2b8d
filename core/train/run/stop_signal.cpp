#include "nibble/core/train/run/stop_signal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/unfinished.h"

namespace nibble {

namespace {

constexpr int kResumable = 75;  // Interrupted::exit_code()

// A signal handler has no other way to reach its state.
std::atomic<int> count{0}, first_signal{0};
std::atomic<StopPolicy> current{StopPolicy::at_once};
std::atomic<bool> installed{false}, silent{false}, on_terminal{false}, resumable{true};
std::atomic<sem_t*> end_now{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<StopPolicy>::is_always_lock_free);

// A terminal has the cursor behind "^C" or the line of progress; there the line is wrapped at blanks.
void say(const char* line) {
  if (silent) return;
  char text[256] = "\n";
  const size_t begin = on_terminal ? 1 : 0, end = begin + strnlen(line, sizeof text - 2);
  std::memcpy(text + begin, line, end - begin);
  text[end] = '\n';
  winsize terminal{};
  const bool wraps = on_terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &terminal) == 0 && terminal.ws_col > 0;
  for (size_t i = begin, row = begin, blank = begin; wraps && i < end; ++i) {
    if (text[i] == ' ') blank = i;
    if (i < row + terminal.ws_col || blank == row) continue;
    text[blank] = '\n';
    row = blank = blank + 1;
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, end + 1);
}

// At once, in a signal handler too: unfinished files are swept by the next start, and processes are not.
[[noreturn]] void leave(int exit_code) {
  kill_groups();
  _exit(exit_code);
}

void note_signal(int signal) {
  const int error = errno;
  // A shell and the kernel both send a hangup when one terminal is closed: it asks to stop, and never twice.
  int before = 0, none = 0;
  if (signal != SIGHUP) {
    before = count.fetch_add(1);
  } else if (!count.compare_exchange_strong(before, 1)) {
    return;
  }
  first_signal.compare_exchange_strong(none, signal);
  const StopPolicy policy = current;
  if (before == 0 && policy == StopPolicy::at_once) {
    sem_post(end_now);
  } else if (before == 0 && policy == StopPolicy::finish_step) {
    say("stopping: the current step is finished and saved; again to leave at once, with the last checkpoint");
  } else if (before == 0) {
    say("stopping: the current step is saved first");
  } else if (before == 1 && policy == StopPolicy::finish_save) {
    say("stopping as soon as the step is saved; again to leave without it");
  } else {
    leave(resumable ? kResumable : 128 + signal);
  }
  errno = error;
}

}  // namespace

StopSignal::StopSignal(End end, StopPolicy policy, bool quiet) : end_(end) {
  NIBBLE_CHECK(!installed.exchange(true), "one StopSignal at a time");
  sem_init(&end_now_, 0, 0);
  count = first_signal = 0;
  resumable = end == End::resumable;
  current = policy;
  on_terminal = isatty(STDERR_FILENO) == 1;
  end_now = &end_now_;
  ender_ = std::thread([this] { end_when_signalled(); });
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], nullptr, &former_[i]);
  take(quiet);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &former_[i], nullptr);
  over_ = true;
  sem_post(&end_now_);
  ender_.join();
  end_now = nullptr;
  sem_destroy(&end_now_);
  installed = false;
}

void StopSignal::take(bool quiet) {
  silent = quiet;
  struct sigaction action {};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    const bool stays_ignored = kStopSignals[i] == SIGHUP && former_[i].sa_handler == SIG_IGN;
    if (!stays_ignored) sigaction(kStopSignals[i], &action, nullptr);
  }
}

// The thread that ends the process where the policy is at_once; elsewhere Run::save_and_interrupt() throws Interrupted.
void StopSignal::end_when_signalled() {
  while (sem_wait(&end_now_) != 0 && errno == EINTR) {
  }
  if (over_) return;
  say(end_ == End::resumable ? "stopping: what is not finished is removed; run the same command to continue"
                             : "stopping: what is not finished is removed");
  remove_unfinished();
  if (end_ == End::resumable) _exit(kResumable);
  ::signal(first_signal, SIG_DFL);
  raise(first_signal);  // this thread's own: kill may return before another thread has taken it
  _exit(128 + first_signal);
}

// A signal that came before meets the policy too: it is not there to be lost.
void StopSignal::set_policy(StopPolicy policy) {
  current = policy;
  if (policy == StopPolicy::at_once && count > 0) sem_post(&end_now_);
  if (policy == StopPolicy::finish_step && count > 1) leave(kResumable);
}

int StopSignal::signal() const { return first_signal; }

void StopSignal::watch(Observer& observer) {
  observer.stop_requested = [this] { return requested(); };
  observer.on_stop_policy = [this](StopPolicy policy) { set_policy(policy); };
}

}  // namespace nibble
