#include "nibble/core/nn/mixers/slab_cache.h"

#include <algorithm>
#include <utility>

#include "nibble/core/ops/elementwise.h"

namespace nibble {

void SlabCache::reserve(int64_t length) {
  if (length <= capacity) return;
  const int64_t before = std::exchange(capacity, std::max<int64_t>({length, 2 * capacity, 64}));
  for (size_t i = 0; i < rows.size(); ++i) {
    Tensor larger = Tensor::empty(pool, {sequences * capacity, columns[i]}, dtype, "key/value cache");
    for (int64_t s = 0; before > 0 && s < sequences; ++s) {
      Tensor slab = larger.rows(s * capacity, s * capacity + before);
      ops::cast(rows[i].rows(s * before, (s + 1) * before), slab);
    }
    rows[i] = larger;
  }
}

void SlabCache::copy(int64_t from, int64_t to, int64_t length) {
  for (const Tensor& slabs : rows) {
    Tensor slab = slabs.rows(to * capacity, to * capacity + length);
    ops::cast(slabs.rows(from * capacity, from * capacity + length), slab);
  }
}

std::vector<ops::AttentionSpan> SlabCache::spans(const LayerContext& context) const {
  std::vector<ops::AttentionSpan> seen;
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const auto [sequence, length] = context.continued[i];
    const int64_t begin = context.spans[i].q_begin, end = context.spans[i].q_end;
    NIBBLE_CHECK(sequence < sequences && length + end - begin <= capacity, "no room in the cache");
    seen.push_back({begin, end, sequence * capacity, sequence * capacity + length + end - begin});
  }
  return seen;
}

void SlabCache::append(const Tensor& result, const ops::AttentionSpan& span, Tensor& slabs) {
  Tensor rows = slabs.rows(span.k_end - (span.q_end - span.q_begin), span.k_end);
  ops::cast(result.rows(span.q_begin, span.q_end), rows);
}

}  // namespace nibble
