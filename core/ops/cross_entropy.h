#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Softmax cross-entropy of a chunk of tokens, forward and backward in one pass over the logits.
/// logits [N, V] f32; targets [N] i32 in [0, V); losses [N] f32 (out) = log sum exp(logits) - logits[target].
/// With softcap > 0 the logits are capped first: softcap * tanh(logits / softcap) (Gemma 2).
/// dlogits (may be undefined; [N, V] f32 or bf16, may share bytes with logits when f32) = gradient * scale.
void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits);

/// The same in two steps, for logits [N, V] of which other ranks have further columns; a target outside [0, V) is one
/// of theirs (-1). First what these columns add: tops [N] f32 the largest (capped) logit, sums [N] f32 the sum of
/// e^(logit - top), target_logits [N] f32 the capped logit of the target, or 0.
void cross_entropy_sums(const Tensor& logits, const Tensor& targets, float softcap, Tensor& tops, Tensor& sums,
                        Tensor& target_logits);
/// Then dlogits (as above) from tops and sums over all columns.
void cross_entropy_slopes(const Tensor& logits, const Tensor& targets, const Tensor& tops, const Tensor& sums,
                          float softcap, float scale, Tensor& dlogits);

}  // namespace nibble::ops
