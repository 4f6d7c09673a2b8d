#pragma once
// What one rank has: passed explicitly to everything that allocates, communicates or draws random numbers.

#include <cstdint>

namespace nibble {

class Communicator;
class MemoryPool;

/// One rank of a run. References must outlive the context's users; nothing in it is global.
struct RankContext {
  Communicator& comm;  ///< all ranks of the run
  MemoryPool& pool;    ///< this rank's memory
  int threads = 1;     ///< cores this rank computes on
  uint64_t seed = 0;   ///< key of every Philox stream of the run
};

}  // namespace nibble
