#pragma once
// Sizes of one attention problem and which keys a query sees: plain arithmetic shared by the forward and backward
// kernels.

#include <algorithm>
#include <string>

#include "nibble/core/ops/attention.h"

namespace nibble::ops {

/// Keys in one tile: scores of a few rows, a transposed tile of K and one of V fit the first two cache levels.
constexpr int64_t kKeys = 64;

struct AttentionPlan {
  AttentionPlan(const Tensor& q, const Tensor& k, const AttentionParams& p, int64_t lanes)
      : heads(p.heads),
        kv_heads(p.kv_heads),
        group(p.heads / p.kv_heads),
        width(p.head_size),
        padded((p.head_size + lanes - 1) / lanes * lanes),
        queries(q.dim(0)),
        keys(k.dim(0)),
        params(p) {}

  int64_t heads, kv_heads, group;  ///< group: query heads that share a key head
  int64_t width, padded;           ///< head size, and rounded up to whole vectors
  int64_t queries, keys;
  const AttentionParams& params;

  float slope(int64_t head) const {
    return params.alibi_slopes.empty() ? 0.0f : params.alibi_slopes[static_cast<size_t>(head)];
  }
  /// First key that the query at key `position` sees.
  int64_t first_key(const AttentionSpan& span, int64_t position) const {
    return params.window > 0 ? std::max(span.k_begin, position + 1 - params.window) : span.k_begin;
  }
};

/// The columns [low, high) of a tile that starts at key `tile` which the query at key `position` sees.
struct VisibleColumns {
  VisibleColumns(const AttentionPlan& plan, const AttentionSpan& span, int64_t position, int64_t tile)
      : low(std::clamp<int64_t>(plan.first_key(span, position) - tile, 0, kKeys)),
        high(std::clamp<int64_t>(position + 1 - tile, 0, kKeys)) {}
  int64_t low, high;
};

/// The key at which query `query` sits.
inline int64_t key_position(const AttentionSpan& span, int64_t query) { return span.k_end - span.q_end + query; }

/// Whether the spans leave rows of q or of k out.
inline bool leaves_queries_out(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  int64_t inside = 0;
  for (const AttentionSpan& span : spans) inside += span.q_end - span.q_begin;
  return inside != plan.queries;
}
inline bool leaves_keys_out(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  int64_t inside = 0;
  for (const AttentionSpan& span : spans) inside += span.k_end - span.own_begin();
  return inside != plan.keys;
}

}  // namespace nibble::ops
