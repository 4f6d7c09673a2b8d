#pragma once
// Order among the pieces of a parallel_for.

#include <atomic>
#include <cstdint>

namespace nibble {

/// How far a piece of a parallel_for has come, for pieces that add to one sum in a fixed order. A piece may wait for
/// pieces before it alone: those have been taken, so their threads are at work.
class alignas(64) PieceProgress {
 public:
  /// Stages up to this one are done: what was written before is seen by whoever waited for them.
  void reach(int64_t stage);
  /// Returns when stages up to this one are done.
  void wait_for(int64_t stage) const;

 private:
  std::atomic<int64_t> reached_ = 0;
};

}  // namespace nibble
