#include "nibble/core/nn/mixers/slab_cache.h"

#include <algorithm>
#include <utility>

#include "nibble/core/ops/elementwise.h"

namespace nibble {

void SlabCache::grow(int64_t length) {
  if (length < capacity_) return;  // one row stays free: between what is shared and a slab there always is a hole
  const int64_t before = std::exchange(capacity_, std::max<int64_t>({length + 1, expected_ + 1, 2 * capacity_, 64}));
  const auto count = std::ssize(sequences_);
  for (size_t i = 0; i < rows.size(); ++i) {
    Tensor larger = Tensor::empty(pool_, {count * capacity_, columns_[i]}, dtype_, "key/value cache");
    for (int64_t s = 0; before > 0 && s < count; ++s) {
      const int64_t used = std::min(sequences_[static_cast<size_t>(s)].length, before);
      Tensor slab = larger.rows(s * capacity_, s * capacity_ + used);
      ops::cast(rows[i].rows(s * before, s * before + used), slab);
    }
    rows[i] = larger;
  }
}

void SlabCache::copy(int64_t from, int64_t to, int64_t length) {
  forget(to);
  materialize(from);
  Sequence& sequence = sequences_.at(static_cast<size_t>(to));
  sequence = {0, from, length};
  if (!shares_ || from > to) materialize(to);
}

// Those that have begun with it get what they have of it.
void SlabCache::forget(int64_t sequence) {
  for (size_t s = 0; s < sequences_.size(); ++s) {
    if (sequences_[s].shared > 0 && sequences_[s].from == sequence) materialize(static_cast<int64_t>(s));
  }
  sequences_.at(static_cast<size_t>(sequence)) = {};
}

void SlabCache::materialize(int64_t of) {
  Sequence& sequence = sequences_.at(static_cast<size_t>(of));
  if (sequence.shared == 0) return;
  const int64_t whole = sequence.shared + sequence.length;
  grow(whole);
  for (const Tensor& slabs : rows) {
    const int64_t begin = of * capacity_, source = sequence.from * capacity_;
    const Tensor own = slabs.rows(begin, begin + sequence.length).clone(pool_);
    Tensor first = slabs.rows(begin, begin + sequence.shared),
           second = slabs.rows(begin + sequence.shared, begin + whole);
    ops::cast(slabs.rows(source, source + sequence.shared), first);
    ops::cast(own, second);
  }
  sequence = {whole, 0, 0};
}

std::vector<ops::AttentionSpan> SlabCache::spans(const LayerContext& context) {
  const auto length_of = [&](size_t i) {
    const auto [number, length] = context.continued[i];
    const int64_t shared = sequences_.at(static_cast<size_t>(number)).shared;
    return length - shared + context.spans[i].q_end - context.spans[i].q_begin;
  };
  int64_t longest = 0;
  for (size_t i = 0; i < context.spans.size(); ++i) longest = std::max(longest, length_of(i));
  grow(longest);
  std::vector<ops::AttentionSpan> seen;
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const int64_t number = context.continued[i].sequence, begin = number * capacity_;
    Sequence& sequence = sequences_[static_cast<size_t>(number)];
    sequence.length = length_of(i);
    ops::AttentionSpan& span = seen.emplace_back(context.spans[i]);
    span.k_begin = begin;
    span.k_end = begin + sequence.length;
    if (sequence.shared == 0) continue;
    span.k_begin = sequence.from * capacity_;
    span.hole_begin = span.k_begin + sequence.shared;
    span.hole_end = begin;
  }
  return seen;
}

void SlabCache::append(const Tensor& result, const ops::AttentionSpan& span, Tensor& slabs) {
  Tensor rows = slabs.rows(span.k_end - (span.q_end - span.q_begin), span.k_end);
  ops::cast(result.rows(span.q_begin, span.q_end), rows);
}

}  // namespace nibble
