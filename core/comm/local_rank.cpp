#include "nibble/core/comm/local_rank.h"

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"

namespace nibble {

LocalRank::LocalRank(int wanted, uint64_t seed, size_t memory_budget)
    : pool_(memory_budget), context_{comm_, pool_, wanted > 0 ? wanted : threads(), seed} {
  if (wanted < 0) throw UsageError("threads must be 0 (all cores) or positive");
  set_threads(context_.threads);
}

}  // namespace nibble
