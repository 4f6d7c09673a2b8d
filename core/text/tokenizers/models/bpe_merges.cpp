#include "nibble/core/text/tokenizers/models/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace nibble {

namespace {

constexpr size_t kShort = 32;  // up to here looking through all pairs beats a heap

}  // namespace

BpeMerges::BpeMerges(size_t count) {
  const size_t size = std::bit_ceil(2 * count + 2);
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

void BpeMerges::add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  const uint64_t pair = pair_of(left, right);
  size_t k = slot_of(pair);
  while (slots_[k].pair != UINT64_MAX && slots_[k].pair != pair) k = (k + 1) & (slots_.size() - 1);
  slots_[k] = {pair, {rank, merged}};
}

void BpeMerges::apply(std::vector<ModelToken>& symbols) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kShort ? apply_short(symbols) : apply_long(symbols);
}

void BpeMerges::apply_short(std::vector<ModelToken>& symbols) const {
  Merge merges[kShort] = {};  // of symbols k and k + 1
  size_t count = symbols.size();
  for (size_t k = 0; k + 1 < count; ++k) merges[k] = find(symbols[k].id, symbols[k + 1].id);
  while (count > 1) {
    size_t best = 0;
    for (size_t k = 1; k + 1 < count; ++k) best = merges[k].rank < merges[best].rank ? k : best;
    if (merges[best].merged < 0) break;
    symbols[best].id = merges[best].merged;
    symbols[best].end = symbols[best + 1].end;
    for (size_t k = best + 1; k + 1 < count; ++k) {
      symbols[k] = symbols[k + 1];
      merges[k] = merges[k + 1];
    }
    --count;
    if (best + 1 < count) merges[best] = find(symbols[best].id, symbols[best + 1].id);
    if (best > 0) merges[best - 1] = find(symbols[best - 1].id, symbols[best].id);
  }
  symbols.resize(count);
}

void BpeMerges::apply_long(std::vector<ModelToken>& symbols) const {
  struct Candidate {
    int32_t rank, merged;
    uint32_t position;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  constexpr uint32_t kEnd = UINT32_MAX;
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(count), previous(count);
  std::vector<Candidate> initial;
  for (uint32_t k = 0; k < count; ++k) {
    next[k] = k + 1 < count ? k + 1 : kEnd;
    previous[k] = k > 0 ? k - 1 : kEnd;
    if (k + 1 == count) break;
    const Merge merge = find(symbols[k].id, symbols[k + 1].id);
    if (merge.merged >= 0) initial.push_back({merge.rank, merge.merged, k});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(), std::move(initial));
  const auto consider = [&](uint32_t k) {
    if (k == kEnd || next[k] == kEnd) return;
    const Merge merge = find(symbols[k].id, symbols[next[k]].id);
    if (merge.merged >= 0) queue.push({merge.rank, merge.merged, k});
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const uint32_t k = top.position;
    if (symbols[k].id < 0 || next[k] == kEnd) continue;                           // merged away since
    if (find(symbols[k].id, symbols[next[k]].id).merged != top.merged) continue;  // another pair now
    const uint32_t right = next[k];
    symbols[k].id = top.merged;
    symbols[k].end = symbols[right].end;
    symbols[right].id = -1;
    next[k] = next[right];
    if (next[right] != kEnd) previous[next[right]] = k;
    consider(previous[k]);
    consider(k);
  }
  symbols.erase(std::remove_if(symbols.begin(), symbols.end(), [](const ModelToken& s) { return s.id < 0; }),
                symbols.end());
}

}  // namespace nibble
