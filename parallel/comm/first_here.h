#pragma once
// Ranks that fail alike say so once.

#include <atomic>
#include <cstdint>
#include <functional>

namespace nibble {

/// Which of a host's ranks was the first to ask: a word of memory that they share until all of them have ended.
class FirstHere {
 public:
  /// Collective: `job` is the job's own number, one rank of each host creates the word, `barrier` waits for all ranks.
  FirstHere(uint64_t job, bool creates, const std::function<void()>& barrier);
  ~FirstHere();
  FirstHere(const FirstHere&) = delete;
  FirstHere& operator=(const FirstHere&) = delete;

  /// True on the first rank that asks; on every rank where the host has no shared memory.
  bool ask() { return !asked_ || asked_->fetch_add(1) == 0; }

 private:
  std::atomic<int>* asked_ = nullptr;
};

}  // namespace nibble
