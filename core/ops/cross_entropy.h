#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Softmax cross-entropy of a chunk of tokens, forward and backward in one pass over the logits.
/// logits [N, V] f32; targets [N] i32 in [0, V); losses [N] f32 (out) = log sum exp(logits) - logits[target].
/// With softcap > 0 the logits are capped first: softcap * tanh(logits / softcap) (Gemma 2).
/// dlogits (may be undefined; [N, V] f32 or bf16, may share bytes with logits when f32) = gradient * scale.
void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits);

}  // namespace nibble::ops
