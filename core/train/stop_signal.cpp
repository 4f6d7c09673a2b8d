#include "nibble/core/train/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <array>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1};
constexpr int kResumable = 75;

// A signal handler has no other way to reach its state.
std::atomic<int> first_signal{0};
std::atomic<bool> installed{false};
static_assert(std::atomic<int>::is_always_lock_free);
std::array<struct sigaction, kSignals.size()> former;

void note_signal(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(kResumable);
}

}  // namespace

StopSignal::StopSignal() {
  NIBBLE_CHECK(!installed.exchange(true), "one StopSignal at a time");
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &former[i]);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former[i], nullptr);
  installed = false;
}

int StopSignal::signal() const { return first_signal; }

}  // namespace nibble
