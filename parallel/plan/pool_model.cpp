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
  const auto block = std::make_shared<Block>(state_, use, bytes);
  block->address = state_->take(PoolBooks::rounded(static_cast<size_t>(bytes)));
  state_->now[use] += block->resident();
  state_->note();
  return block;
}

PoolModel::Held PoolModel::map(int64_t bytes) {
  state_->mapped += bytes;
  state_->now[MemoryUse::base] += bytes;
  state_->note();
  return std::make_shared<const Block>(state_, MemoryUse::base, bytes);
}

uintptr_t PoolModel::State::take(size_t size) {
  if (!books.fits(size)) fitted = false;
  std::optional<PoolBooks::Taken> taken = books.take(size);
  if (!taken) {
    const size_t segment = books.next_segment(size);
    books.add_segment({end, end + segment});
    end = (end + segment) / PoolBooks::kHugePage * PoolBooks::kHugePage + PoolBooks::kHugePage;  // apart from the next
    taken = books.take(size);
  }
  return taken->address;
}

void PoolModel::State::note() {
  const int64_t resident = static_cast<int64_t>(books.resident()) + mapped;
  if (resident <= most_bytes) return;
  most_bytes = resident;
  most = now;
  most[MemoryUse::margin] = static_cast<int64_t>(books.resident() - books.in_use());
  mapped_when_most = mapped;
}

int64_t PoolModel::Block::resident() const {
  return address == 0 ? bytes : static_cast<int64_t>(PoolBooks::rounded(static_cast<size_t>(bytes)));
}

PoolModel::Block::~Block() {
  owner->now[use] -= resident();
  if (address == 0) {
    owner->mapped -= bytes;
  } else {
    owner->books.give(address, static_cast<size_t>(resident()));
  }
}

}  // namespace nibble
