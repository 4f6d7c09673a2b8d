#include "nibble/core/comm/local_rank.h"

#include "nibble/core/base/parallel.h"

namespace nibble {

LocalRank::LocalRank(int wanted, uint64_t seed, size_t memory_budget)
    : pool_(memory_budget), context_{comm_, pool_, wanted > 0 ? wanted : threads(), seed} {
  set_threads(context_.threads);
}

}  // namespace nibble
