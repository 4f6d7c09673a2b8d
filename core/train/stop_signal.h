#pragma once
#include <atomic>

namespace nibble {

/// Turns SIGTERM, SIGINT and SIGUSR1 into a flag while it lives, and puts the former handlers back when it goes. The
/// first signal sets the flag; a second one ends the process at once with exit code 75 (the last checkpoint stays).
/// One object at a time (std::logic_error otherwise), made by programs, not by the library.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Number of the signal that came first, or 0.
  int signal() const;
  bool requested() const { return signal() != 0; }
};

}  // namespace nibble
