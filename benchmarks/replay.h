#pragma once
// How long recorded parallel sections take on more threads than a machine has. Threads take pieces in order, as those
// of parallel_for do on one NUMA node; a piece that waits for another's PieceProgress keeps its thread. Left out:
// memory bandwidth, caches, clock rates and anything else that a thread takes from another.

#include <span>
#include <string>
#include <vector>

#include "nibble/benchmarks/section_recorder.h"

namespace nibble::benchmarks {

/// Where the time of the workers goes, in seconds of one worker: all workers together have workers * makespan.
struct Replay {
  struct Part {
    double work = 0;      ///< of pieces
    double idle = 0;      ///< workers without a piece, from the section's start to its end
    double waiting = 0;   ///< workers whose piece waits for another
    double makespan = 0;  ///< from the section's start to its end
  };
  int workers = 1;
  double makespan = 0;      ///< seconds of everything
  double work = 0;          ///< of pieces and gaps
  double gaps = 0;          ///< on the calling thread alone
  double overhead = 0;      ///< of starting and ending sections, seconds of the makespan
  std::vector<Part> parts;  ///< as the sections

  double efficiency() const { return work / (workers * makespan); }
};

/// `overhead`: seconds that it takes to call the workers and to learn that all have ended, for every section.
Replay replay(std::span<const ParallelSection> sections, int workers, double overhead);

/// Of recordings of the same work the shorter time of every gap and piece: other processes only ever add time. Throws
/// std::logic_error unless both have the same sections.
void keep_shortest(std::vector<ParallelSection>& sections, std::span<const ParallelSection> again);

/// The function that the pieces of ParallelSection::code belong to, "adamw", as nm (binutils) finds it in the running
/// program; its address where that finds none.
std::string section_name(const void* code);

/// Markdown: what costs most, sections by name and gaps by the sections around them, as shares of the workers' time;
/// `rows` of each.
std::string costs_table(std::span<const ParallelSection> sections, const Replay& replay, size_t rows);

}  // namespace nibble::benchmarks
