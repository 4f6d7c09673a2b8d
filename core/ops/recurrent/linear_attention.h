#pragma once
// Attention without softmax, whose past is one matrix for each head: state spaces (Mamba-2: Dao and Gu 2024) and the
// gated delta rule (Yang et al. 2024). Computed in chunks of tokens by products, of which one of one token is the
// recurrence; with decays by channel always by the recurrence.

#include "nibble/core/ops/attention.h"
#include "nibble/core/ops/recurrent/recurrent_state.h"

namespace nibble::ops {

struct LinearAttentionParams {
  int64_t heads = 1;       ///< H heads of values
  int64_t key_heads = 1;   ///< G heads of queries and keys; head h uses that of h / (H / G)
  int64_t key_size = 0;    ///< K
  int64_t value_size = 0;  ///< V
  float scale = 1;         ///< of the queries
  /// Every row of a head's state has a decay of its own: log_decay is [T, H K] (Kimi Team 2025; Mamba: Gu and Dao 2023,
  /// where a head is one column, V = 1).
  bool channel_decay = false;
  /// With channel_decay, unless undefined: [H, K] f32. The decays are exp(log_decay exp(log_rates)), log_decay [T, H].
  Tensor log_rates = {}, dlog_rates = {};  ///< dlog_rates [H, K] f32 += gradient unless undefined
  bool delta = false;  ///< what the state already answers to a key is taken from the value before it is written
};

/// For each head, with the state S [K, V] of the tokens before and a = exp(log_decay):
///   u_t = beta_t v_t, or with the delta rule beta_t (v_t - (a_t S)^T k_t);   S = a_t S + k_t u_t^T;
///   out_t = scale S^T q_t + skip v_t.
/// q and k [T, G K], v and out [T, H V], log_decay (<= 0) and beta [T, H], skip [H] or undefined, all f32; `spans`
/// (their queries are what counts) together are all rows. state: null, or rows of H K V elements: S of every head.
void linear_attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                              const Tensor& beta, const Tensor& skip, std::span<const AttentionSpan> spans,
                              const LinearAttentionParams& params, RecurrentState* state, Tensor& out);

/// Gradients in the shapes of what they belong to, overwritten; dskip [H] += unless undefined.
void linear_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& beta, const Tensor& skip,
                               std::span<const AttentionSpan> spans, const LinearAttentionParams& params, Tensor& dq,
                               Tensor& dk, Tensor& dv, Tensor& dlog_decay, Tensor& dbeta, Tensor& dskip);

}  // namespace nibble::ops
