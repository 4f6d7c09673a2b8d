#pragma once
// The parallel sections of a piece of work, recorded on one thread with the pieces that more threads would be given.
// benchmarks/replay.h computes from them how long the work takes on that many.

#include <cstdint>
#include <vector>

#include "nibble/core/base/parallel_observer.h"

namespace nibble::benchmarks {

/// One call of parallel_for with more than one piece. Seconds are the thread's CPU time: what other processes take from
/// it does not count.
struct ParallelSection {
  /// What a piece does with a PieceProgress: reaches a stage, or waits for one.
  struct Step {
    int64_t piece;
    double seconds;  ///< since the piece's step before, or its start
    const void* progress;
    int64_t stage;
    bool waits;
  };

  const void* code = nullptr;  ///< of its pieces: see section_name of benchmarks/replay.h
  double gap = 0;              ///< seconds on the calling thread since the section before
  std::vector<double> pieces;  ///< seconds after each piece's last step, in the order in which threads take pieces
  std::vector<Step> steps;     ///< in order of pieces
};

/// Records the sections of the thread that made it, as so many workers would share them.
class SectionRecorder : public ParallelObserver {
 public:
  explicit SectionRecorder(int workers);

  /// What was recorded so far; the last section, without pieces, has what came behind the others as its gap.
  std::vector<ParallelSection> finish();

  void begin_section(int64_t pieces, const void* code) override;
  void end_piece() override;
  void end_section() override;
  void step(const void* progress, int64_t stage, bool waits) override;

 private:
  double lap();  // since the last call

  bool in_section_ = false;
  double last_ = 0;
  std::vector<ParallelSection> sections_;
};

}  // namespace nibble::benchmarks
