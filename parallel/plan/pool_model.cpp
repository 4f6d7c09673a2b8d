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

void PoolModel::State::note() {
  const int64_t waiting = static_cast<int64_t>(books.waiting());
  const int64_t resident = static_cast<int64_t>(books.in_use()) + waiting + mapped;
  if (resident <= most_bytes) return;
  most_bytes = resident;
  most = now;
  most[MemoryUse::margin] = waiting;
  mapped_when_most = mapped;
}

PoolModel::Held PoolModel::hold(MemoryUse use, int64_t bytes) {
  const size_t size = PoolBooks::rounded(static_cast<size_t>(bytes));
  State& state = *state_;
  if (!state.books.fits(size)) state.fitted = false;
  state.books.take(size);
  state.now[use] += static_cast<int64_t>(size);
  state.note();
  return std::make_shared<const Block>(state_, use, bytes);
}

PoolModel::Held PoolModel::map(int64_t bytes) {
  state_->mapped += bytes;
  state_->now[MemoryUse::base] += bytes;
  state_->note();
  return std::make_shared<const Block>(state_, MemoryUse::base, bytes, true);
}

PoolModel::Block::~Block() {
  if (mapped) {
    owner->mapped -= bytes;
    owner->now[use] -= bytes;
    return;
  }
  const size_t size = PoolBooks::rounded(static_cast<size_t>(bytes));
  owner->now[use] -= static_cast<int64_t>(size);
  owner->books.give(size, nullptr);
}

}  // namespace nibble
