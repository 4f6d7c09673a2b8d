#pragma once
// Watching the parallel sections of a thread: how benchmarks learn where a step's time goes.

#include <cstdint>

namespace nibble {

/// While one lives, parallel_for of the thread that made it runs all pieces on that thread, in the order in which
/// threads take them, and notifies the observer; threads() says `workers`. The bits of what is computed do not depend
/// on it.
class ParallelObserver {
 public:
  /// A second one on a thread is a mistake in the program (std::logic_error).
  explicit ParallelObserver(int workers);
  virtual ~ParallelObserver();
  ParallelObserver(const ParallelObserver&) = delete;
  ParallelObserver& operator=(const ParallelObserver&) = delete;

  /// The calling thread's, null where there is none.
  static ParallelObserver* active();

  int workers() const { return workers_; }
  /// A parallel_for of more than one piece; `code` is that of its pieces.
  virtual void begin_section(int64_t pieces, const void* code) = 0;
  virtual void end_piece() = 0;
  virtual void end_section() = 0;
  /// A piece reaches a stage of a PieceProgress, or has waited for one.
  virtual void step(const void* progress, int64_t stage, bool waits) = 0;

 private:
  int workers_;
};

}  // namespace nibble
