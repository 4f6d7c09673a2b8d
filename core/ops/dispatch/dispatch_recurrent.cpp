// The ops of mixers without softmax as callers see them (see dispatch.cpp): causal_conv.h, linear_attention.h,
// time_step.h, gated_norm.h.

#include "nibble/core/ops/dispatch/dispatch.h"

namespace nibble::ops {

namespace {

void check_documents(std::span<const AttentionSpan> spans, int64_t tokens, const RecurrentState* state, int64_t row,
                     const char* op) {
  int64_t end = 0;
  for (const AttentionSpan& span : spans) {
    NIBBLE_CHECK(span.hole() == 0, "documents whose beginning is elsewhere");
    NIBBLE_CHECK(span.q_begin == end && span.q_end >= end, std::string(op) + ": documents");
    end = span.q_end;
  }
  NIBBLE_CHECK(end == tokens, std::string(op) + ": documents");
  if (state == nullptr) return;
  NIBBLE_CHECK(state->rows.size() == spans.size() && state->values.dim(1) == row, std::string(op) + ": state");
  for (const int64_t i : state->rows) {
    NIBBLE_CHECK(i >= 0 && i < state->values.dim(0), std::string(op) + ": rows of the state");
  }
}

void check_conv(const Tensor& x, const Tensor& w, const Tensor& b) {
  NIBBLE_CHECK(x.rank() == 2 && w.dim(0) == x.dim(1) && w.numel() >= x.dim(1), "causal_conv: shapes");
  NIBBLE_CHECK(!b || b.numel() == x.dim(1), "causal_conv: bias");
}

void check_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                            const Tensor& beta, const Tensor& skip, const LinearAttentionParams& p) {
  const int64_t tokens = q.dim(0);
  NIBBLE_CHECK(p.heads > 0 && p.key_heads > 0 && p.heads % p.key_heads == 0, "linear_attention: heads");
  NIBBLE_CHECK(q.shape() == (Shape{tokens, p.key_heads * p.key_size}) && k.shape() == q.shape(),
               "linear_attention: q or k");
  NIBBLE_CHECK(v.shape() == (Shape{tokens, p.heads * p.value_size}), "linear_attention: v");
  NIBBLE_CHECK(log_decay.shape() == (Shape{tokens, p.channel_decay && !p.log_rates ? p.heads * p.key_size : p.heads}) &&
                   beta.shape() == (Shape{tokens, p.heads}) && (!skip || skip.numel() == p.heads),
               "linear_attention: decay, beta or skip");
  NIBBLE_CHECK(!p.log_rates || (p.channel_decay && p.log_rates.numel() == p.heads * p.key_size),
               "linear_attention: rates");
}

void check_time_step(const Tensor& x, const Tensor& bias, const Tensor& a_log) {
  NIBBLE_CHECK(x.rank() == 2 && bias.numel() == x.dim(1) && x.dim(1) % a_log.numel() == 0, "time_step: shapes");
}

void check_gated_norm(const Tensor& x, const Tensor& gate, const Tensor& w, const GatedNormParams& p) {
  NIBBLE_CHECK(x.rank() == 2 && gate.shape() == x.shape() && p.group > 0, "gated_norm: shapes");
  NIBBLE_CHECK(w.numel() % p.group == 0 && x.dim(1) % w.numel() == 0, "gated_norm: weight");
}

}  // namespace

void causal_conv_forward(const Tensor& x, const Tensor& w, const Tensor& b, std::span<const AttentionSpan> spans,
                         RecurrentState* state, Tensor& y) {
  check_conv(x, w, b);
  check_documents(spans, x.dim(0), state, w.numel() - x.dim(1), "causal_conv");
  NIBBLE_CHECK(y.shape() == x.shape(), "causal_conv: shapes");
  on(x).causal_conv_forward(x, w, b, spans, state, y);
}

void causal_conv_backward(const Tensor& dy, const Tensor& x, const Tensor& w, std::span<const AttentionSpan> spans,
                          Tensor& dx, Tensor& dw, Tensor& db) {
  check_conv(x, w, db);
  check_documents(spans, x.dim(0), nullptr, 0, "causal_conv");
  NIBBLE_CHECK(dy.shape() == x.shape() && dx.shape() == x.shape() && dx.dtype() == x.dtype(), "causal_conv: shapes");
  NIBBLE_CHECK(!dw || dw.numel() == w.numel(), "causal_conv: shape of the filters' gradient");
  on(x).causal_conv_backward(dy, x, w, spans, dx, dw, db);
}

void linear_attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                              const Tensor& beta, const Tensor& skip, std::span<const AttentionSpan> spans,
                              const LinearAttentionParams& params, RecurrentState* state, Tensor& out) {
  check_linear_attention(q, k, v, log_decay, beta, skip, params);
  check_documents(spans, q.dim(0), state, params.heads * params.key_size * params.value_size, "linear_attention");
  NIBBLE_CHECK(out.shape() == v.shape(), "linear_attention: out");
  on(q).linear_attention_forward(q, k, v, log_decay, beta, skip, spans, params, state, out);
}

void linear_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& beta, const Tensor& skip,
                               std::span<const AttentionSpan> spans, const LinearAttentionParams& params, Tensor& dq,
                               Tensor& dk, Tensor& dv, Tensor& dlog_decay, Tensor& dbeta, Tensor& dskip) {
  check_linear_attention(q, k, v, log_decay, beta, skip, params);
  check_documents(spans, q.dim(0), nullptr, 0, "linear_attention");
  NIBBLE_CHECK(dout.shape() == v.shape() && dv.shape() == v.shape() && dq.shape() == q.shape() &&
                   dk.shape() == k.shape() && dlog_decay.shape() == log_decay.shape() &&
                   dbeta.shape() == beta.shape() && (!dskip || dskip.numel() == params.heads),
               "linear_attention: shapes of gradients");
  on(q).linear_attention_backward(dout, q, k, v, log_decay, beta, skip, spans, params, dq, dk, dv, dlog_decay, dbeta,
                                  dskip);
}

void time_step_forward(const Tensor& x, const Tensor& bias, const Tensor& a_log, const TimeStepLimits& limits,
                       Tensor& step, Tensor& log_decay) {
  check_time_step(x, bias, a_log);
  NIBBLE_CHECK(same_count(x, step, log_decay), "time_step: shapes");
  on(x).time_step_forward(x, bias, a_log, limits, step, log_decay);
}

void time_step_backward(const Tensor& dstep, const Tensor& dlog_decay, const Tensor& x, const Tensor& bias,
                        const Tensor& a_log, const TimeStepLimits& limits, Tensor& dx, Tensor& dbias, Tensor& da_log) {
  check_time_step(x, bias, a_log);
  NIBBLE_CHECK(same_count(x, dlog_decay, dx) && (!dstep || same_count(x, dstep)) && dx.dtype() == x.dtype() &&
                   (!dbias || dbias.numel() == x.dim(1)) && (!da_log || da_log.numel() == a_log.numel()),
               "time_step: shapes of gradients");
  on(x).time_step_backward(dstep, dlog_decay, x, bias, a_log, limits, dx, dbias, da_log);
}

void gated_norm_forward(const Tensor& x, const Tensor& gate, const Tensor& w, const GatedNormParams& params,
                        Tensor& y) {
  check_gated_norm(x, gate, w, params);
  NIBBLE_CHECK(y.shape() == x.shape() && y.dtype() == gate.dtype(), "gated_norm: y");
  on(x).gated_norm_forward(x, gate, w, params, y);
}

void gated_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, const Tensor& w,
                         const GatedNormParams& params, Tensor& dx, Tensor& dgate, Tensor& dw) {
  check_gated_norm(x, gate, w, params);
  NIBBLE_CHECK(same_count(x, dy, dx, dgate) && dy.dtype() == gate.dtype() && dgate.dtype() == gate.dtype() &&
                   (!dw || dw.numel() == w.numel()),
               "gated_norm: gradients");
  on(x).gated_norm_backward(dy, x, gate, w, params, dx, dgate, dw);
}

}  // namespace nibble::ops
