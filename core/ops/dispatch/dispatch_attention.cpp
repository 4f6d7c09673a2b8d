// The ops of attention with softmax as callers see them (see dispatch.cpp): attention.h, rope.h.

#include "nibble/core/ops/dispatch/dispatch.h"

namespace nibble::ops {

// ---- attention.h ----

namespace {

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                     const AttentionParams& p, bool trees) {
  NIBBLE_CHECK(p.heads > 0 && p.kv_heads > 0 && p.head_size > 0 && p.heads % p.kv_heads == 0, "attention: heads");
  NIBBLE_CHECK(q.rank() == 2 && q.dim(1) == p.heads * p.head_size, "attention: q " + to_string(q.shape()));
  NIBBLE_CHECK(k.rank() == 2 && k.dim(1) == p.kv_heads * p.head_size, "attention: k " + to_string(k.shape()));
  NIBBLE_CHECK(v.shape() == k.shape() && k.dtype() == q.dtype() && v.dtype() == q.dtype(), "attention: v or dtypes");
  NIBBLE_CHECK(p.alibi_slopes.empty() || static_cast<int64_t>(p.alibi_slopes.size()) == p.heads, "attention: slopes");
  int64_t query = 0, key = 0;
  for (const AttentionSpan* first = nullptr; const AttentionSpan& span : spans) {  // first of those that begin alike
    NIBBLE_CHECK(query <= span.q_begin && span.q_begin <= span.q_end && span.q_end <= q.dim(0), "attention: queries");
    NIBBLE_CHECK(span.hole() >= 0 && key <= span.own_begin() && span.k_end <= k.dim(0), "attention: keys");
    NIBBLE_CHECK(span.q_end - span.q_begin <= span.k_end - span.own_begin(), "attention: fewer keys than queries");
    if (span.hole() == 0) first = &span;
    NIBBLE_CHECK(span.hole() == 0 || span.k_begin < span.hole_begin, "attention: a beginning without keys");
    NIBBLE_CHECK(!trees || &span == first ||
                     (first && span.k_begin == first->k_begin && span.k_begin < span.hole_begin &&
                      span.hole_begin <= first->k_end && span.hole_begin == first[1].hole_begin),
                 "attention: the beginning that documents share");
    query = span.q_end;
    key = span.k_end;
  }
}

}  // namespace

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                       const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  check_attention(q, k, v, spans, params, false);
  NIBBLE_CHECK(out.shape() == q.shape() && out.dtype() == q.dtype(), "attention: out");
  NIBBLE_CHECK(log_sum_exp.numel() == params.heads * q.dim(0), "attention: log_sum_exp");
  on(q).attention_forward(q, k, v, spans, params, out, log_sum_exp);
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
                        Tensor& dq, Tensor& dk, Tensor& dv) {
  check_attention(q, k, v, spans, params, true);
  for (const Tensor* like_q : {&dout, &out, static_cast<const Tensor*>(&dq)}) {
    NIBBLE_CHECK(like_q->shape() == q.shape() && like_q->dtype() == q.dtype(), "attention backward: dout, out or dq");
  }
  NIBBLE_CHECK(dk.shape() == k.shape() && dk.dtype() == q.dtype(), "attention backward: dk");
  NIBBLE_CHECK(dv.shape() == k.shape() && dv.dtype() == q.dtype(), "attention backward: dv");
  NIBBLE_CHECK(log_sum_exp.numel() == params.heads * q.dim(0), "attention backward: log_sum_exp");
  on(q).attention_backward(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
}

namespace {

void check_sinks(const Tensor& sinks, const Tensor& out, const Tensor& log_sum_exp) {
  NIBBLE_CHECK(out.rank() == 2 && out.dim(1) % sinks.numel() == 0 && log_sum_exp.numel() == sinks.numel() * out.dim(0),
               "attention sinks: shapes");
}

}  // namespace

void attention_sinks_forward(const Tensor& sinks, Tensor& out, Tensor& log_sum_exp) {
  check_sinks(sinks, out, log_sum_exp);
  on(out).attention_sinks_forward(sinks, out, log_sum_exp);
}

void attention_sinks_backward(const Tensor& dout, const Tensor& out, const Tensor& sinks, const Tensor& log_sum_exp,
                              Tensor& dsinks) {
  check_sinks(sinks, out, log_sum_exp);
  NIBBLE_CHECK(dout.shape() == out.shape() && same_count(sinks, dsinks), "attention sinks: shapes");
  on(out).attention_sinks_backward(dout, out, sinks, log_sum_exp, dsinks);
}

// ---- rope.h ----

void rope(Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool inverse,
          RopePairs pairs, int64_t begin) {
  NIBBLE_CHECK(heads > 0 && x.dim(1) % heads == 0 && begin >= 0 && begin + 2 * cos.dim(1) <= x.dim(1) / heads,
               "rope: head size");
  NIBBLE_CHECK(positions.numel() == x.dim(0) && sin.shape() == cos.shape(), "rope: shapes");
  check_indices(positions, cos.dim(0), "rope");
  on(x).rope(x, heads, positions, cos, sin, inverse, pairs, begin);
}

}  // namespace nibble::ops
