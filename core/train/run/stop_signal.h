#pragma once
#include <semaphore.h>
#include <signal.h>

#include <array>
#include <thread>

#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// The signals that ask a program to stop: the terminal was closed, Ctrl-C, a scheduler's, what mpirun passes on.
inline constexpr std::array kStopSignals = {SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Meets these signals while it lives (docs/design.md, "A signal", has the whole way to the exit), and puts the former
/// handlers back when it goes. SIGHUP stays ignored where it was (nohup). One object at a time (std::logic_error
/// otherwise), made by programs, not by the library.
///
/// With StopPolicy::at_once what is unfinished on the disk is removed (remove_unfinished()) and the process ends: by
/// the signal itself, or with exit code 75. Otherwise the first signal sets a flag and says on stderr what happens; a
/// second one ends the process at once with exit code 75 (the last checkpoint stands), except while a step is being
/// saved, when it takes a third one, or the end of the save. A hangup after another signal says nothing new.
class StopSignal {
 public:
  /// How the process ends where it ends at once.
  enum class End { by_signal, resumable };
  /// quiet: prints nothing, since other ranks do.
  explicit StopSignal(End end = End::resumable, StopPolicy policy = StopPolicy::finish_step, bool quiet = false);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Takes the handlers again, after libraries that took them (those that MPI loads). quiet: as above.
  void take(bool quiet);
  /// May be called from any thread.
  void set_policy(StopPolicy policy);
  /// Number of the signal that came first, or 0.
  int signal() const;
  bool requested() const { return signal() != 0; }
  /// Sets stop_requested and on_stop_policy of `observer`.
  void watch(Observer& observer);

 private:
  void end_when_signalled();

  End end_;
  sem_t end_now_;
  bool over_ = false;
  std::array<struct sigaction, kStopSignals.size()> former_;
  std::thread ender_;  // removing files is nothing that a signal handler can do
};

}  // namespace nibble
