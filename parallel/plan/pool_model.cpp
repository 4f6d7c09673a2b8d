#include "nibble/parallel/plan/pool_model.h"

#include <numeric>

namespace nibble {

const char* memory_use_name(MemoryUse use) {
  constexpr const char* kNames[] = {"base",   "adapters",  "gradients",  "optimizer", "activations", "gathered",
                                    "logits", "workspace", "checkpoint", "program",   "margin"};
  static_assert(std::size(kNames) == kMemoryUses);
  return kNames[static_cast<size_t>(use)];
}

int64_t MemorySplit::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

PoolModel::Held PoolModel::hold(MemoryUse use, int64_t bytes) {
  const size_t size = PoolBooks::rounded(static_cast<size_t>(bytes));
  State& state = *state_;
  if (!state.books.fits(size)) state.fitted = false;
  state.books.take(size);
  state.now[use] += static_cast<int64_t>(size);
  const int64_t waiting = static_cast<int64_t>(state.books.waiting());
  const int64_t resident = static_cast<int64_t>(state.books.in_use()) + waiting;
  if (resident > state.most_bytes) {
    state.most_bytes = resident;
    state.most = state.now;
    state.most[MemoryUse::margin] = waiting;
  }
  return std::make_shared<const Block>(state_, use, bytes);
}

PoolModel::Block::~Block() {
  const size_t size = PoolBooks::rounded(static_cast<size_t>(bytes));
  owner->now[use] -= static_cast<int64_t>(size);
  owner->books.give(size, nullptr);
}

}  // namespace nibble
