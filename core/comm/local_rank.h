#pragma once
#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"

namespace nibble {

/// Everything a run with a single rank needs: memory, a communicator of one, threads. What library users and commands
/// start from: `LocalRank rank; Decoder model = load_decoder(dir, rank.context());`
class LocalRank {
 public:
  /// threads: 0 = OMP_NUM_THREADS or the machine's, never negative (UsageError); memory_budget in bytes, 0 = none.
  explicit LocalRank(int threads = 0, uint64_t seed = 0, size_t memory_budget = 0);

  RankContext& context() { return context_; }

 private:
  MemoryPool pool_;
  SelfComm comm_;
  RankContext context_;
};

}  // namespace nibble
