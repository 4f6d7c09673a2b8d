#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Softmax cross-entropy of a chunk of tokens, forward and backward in one pass over the logits.
/// logits [N, V] f32; targets [N] i32 in [0, V); losses [N] f32 (out) = log sum exp(logits) - logits[target].
/// With softcap > 0 the logits are capped first: softcap * tanh(logits / softcap) (Gemma 2).
/// dlogits (may be undefined; [N, V] f32 or bf16, may share bytes with logits when f32) = gradient * scale, of row n
/// times weights[n] as well (weights [N] f32, on the host as the targets; undefined: all 1).
void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits, const Tensor& weights = {});

/// Statistics of a row's probabilities p beside the loss: the rows of `token_statistics` below.
enum class TokenStatistic : uint8_t {
  collision,   ///< log sum p^2
  entropy,     ///< -sum p log p
  mean_logit,  ///< over the vocabulary
  top1,        ///< 1: the target is the first of the most probable tokens, else 0
};
inline constexpr int64_t kTokenStatistics = 4;

/// The same in three steps, for logits [N, V] that are a shard of all columns (tensor parallelism); a target in another
/// shard is -1. First statistics [3, N] f32 of these columns: the largest (capped) logit of
/// each row, the sum of e^(logit - largest), and the capped logit of the target, or 0. [7, N]: in the same pass the
/// sums of e^(logit - largest) (logit - largest), of e^(2 (logit - largest)), and of the logits, and whether the target
/// is the first of the largest here (1 or 0; -1: it is in another shard).
void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics);
/// Then, from those of all P shards [P * 3, N]: row_max and row_sumexp [N] f32 over all columns, and losses [N] f32.
/// token_statistics (may be undefined; [4, N] f32; from statistics [P * 7, N]): see TokenStatistic; the mean logit as a
/// sum still.
void cross_entropy_merge(const Tensor& statistics, Tensor& row_max, Tensor& row_sumexp, Tensor& losses,
                         Tensor& token_statistics);
/// Then dlogits (as above) of these columns.
void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& row_max,
                            const Tensor& row_sumexp, float softcap, float scale, Tensor& dlogits,
                            const Tensor& weights = {});

/// Generalized Jensen-Shannon divergence of a chunk of tokens (Agarwal et al. 2024; TRL's generalized_jsd_loss),
/// forward and backward. logits [N, V] f32 of the student, capped as above, and teacher [N, V] f32, both divided by
/// temperature; p and q are their softmax. losses [N] f32 (out): beta 0: KL(q || p), beta 1: KL(p || q), else beta KL(q
/// || m) + (1 - beta) KL(p || m) with m = (1 - beta) p + beta q. dlogits (may be undefined; [N, V] f32, may share bytes
/// with logits) = the gradient by the student's logits * scale. entropies [N] f32 (out): -sum p log p.
void divergence(const Tensor& logits, const Tensor& teacher, float softcap, float temperature, float beta, float scale,
                Tensor& losses, Tensor& entropies, Tensor& dlogits);

}  // namespace nibble::ops
