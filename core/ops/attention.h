#pragma once
// Causal softmax attention, tiled over keys with a running maximum (FlashAttention: Dao et al. 2022; no T x T buffer).

#include <span>
#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// One document: queries [q_begin, q_end) attend to keys [k_begin, k_end) of the same document. The last query sits at
/// the last key, so with a KV cache (more keys than queries) query i is at key k_end - q_end + i.
///
/// Documents may share a beginning, whose keys stand once, before theirs: k_begin is its, and keys [hole_begin,
/// hole_end) are not the document's. They are no distance either: the key at hole_end is the one after hole_begin - 1,
/// and queries sit at keys behind the hole. Backward the beginning is in a document right before those that share it.
struct AttentionSpan {
  int64_t q_begin, q_end, k_begin, k_end;
  int64_t hole_begin = 0, hole_end = 0;  ///< equal: none

  int64_t hole() const { return hole_end - hole_begin; }
  /// The first key that is in no document before.
  int64_t own_begin() const { return hole() > 0 ? hole_end : k_begin; }
  /// Without the hole: its keys are numbered up to k_end, and these numbers are what distances are between.
  AttentionSpan numbered() const { return {q_begin, q_end, k_begin + hole(), k_end, hole_begin, hole_end}; }
  /// Where the key with a number of numbered() stands.
  int64_t key_row(int64_t number) const { return number < hole_end ? number - hole() : number; }
};

struct AttentionParams {
  int64_t heads = 1;      ///< H query heads
  int64_t kv_heads = 1;   ///< G key/value heads; query head h uses key head h / (H / G)
  int64_t head_size = 0;  ///< K
  float scale = 1.0f;     ///< multiplies q k^T
  int64_t window = 0;     ///< query i sees keys i-window+1..i; 0 = all before it
  float softcap = 0.0f;   ///< scores become softcap * tanh(scores / softcap); 0 = off (Gemma 2)
  /// [H]: adds slope * (key position - query position) to the scaled score; empty = off (ALiBi: Press et al. 2021)
  std::vector<float> alibi_slopes;
  /// As Falcon computes it, unless 0: what is added for a position is bf16(slope * position) times this.
  float alibi_rounded_scale = 0;
};

/// q [Tq, H * K], k and v [Tk, G * K], out [Tq, H * K], all of one dtype (f32 or bf16); log_sum_exp [H, Tq] f32 (out).
/// Scores and sums are f32; bf16 weights times bf16 values with AVX512_BF16. Rows of `out` in no span become zero. A
/// document with a hole has the result of one without up to roundings.
void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                       const AttentionParams& params, Tensor& out, Tensor& log_sum_exp);

/// Gradients of q, k, v (same shapes and dtype, overwritten; rows in no span get zeros) from dout and what was saved.
void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
                        Tensor& dq, Tensor& dk, Tensor& dv);

/// One more logit per head in the softmax, whose share is dropped (gpt-oss): out and log_sum_exp of attention_forward,
/// with it. sinks [H] f32. attention_backward takes these as it would take the others.
void attention_sinks_forward(const Tensor& sinks, Tensor& out, Tensor& log_sum_exp);
/// dsinks [H] f32 += gradient; out and log_sum_exp with the sinks.
void attention_sinks_backward(const Tensor& dout, const Tensor& out, const Tensor& sinks, const Tensor& log_sum_exp,
                              Tensor& dsinks);

}  // namespace nibble::ops
