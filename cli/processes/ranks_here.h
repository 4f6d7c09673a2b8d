#pragma once
// The ranks of a job that run on this host, seen from outside: a mpirun that hangs does not say that one was lost.

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace nibble::cli {

/// Running processes of this program that `launcher` has started; none where /proc does not say.
std::vector<pid_t> ranks_started_by(pid_t launcher);

/// Whether `process` has a handler for `signal`.
bool catches(pid_t process, int signal);

/// A warning where so many threads of so many ranks have fewer cores here; empty where they have enough.
std::string crowd_warning(int ranks, int threads);

/// Notices that a rank of `launcher` is gone.
class RanksHere {
 public:
  explicit RanksHere(pid_t launcher) : launcher_(launcher) {}
  void look();
  /// Whether fewer run than ran before.
  bool one_is_gone() const { return now_ < most_; }
  bool none_runs() const { return now_ == 0; }

 private:
  pid_t launcher_;
  size_t most_ = 0, now_ = 0;
  std::chrono::steady_clock::time_point last_look_{};
};

}  // namespace nibble::cli
