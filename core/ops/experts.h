#pragma once
// Routing of tokens to experts: which k experts a token gets, how much each counts, and the gradient of that. Logits
// and weights are f32. Facts of the families: the routers of Mixtral (Jiang et al. 2024), Qwen, OLMoE, gpt-oss,
// DeepSeek V2 and V3 (Liu et al. 2024), Llama 4.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// What the score of an expert is, from the logits of a token.
enum class RouterScore : uint8_t {
  softmax,         ///< over all experts
  chosen_softmax,  ///< over the chosen ones; the logits choose
  sigmoid,
  /// k = 2: the best expert, then the best of the others; each weighs what a softmax gives it over those whose logit is
  /// not much less, see Routing::jitter (Phi-3.5-MoE's SparseMixer without its noise: Liu et al. 2023)
  sparse_mixer,
};

/// What chooses between groups of experts.
enum class GroupScore : uint8_t {
  best,      ///< the best score in the group (DeepSeek V2)
  two_best,  ///< the sum of its two best (DeepSeek V3)
};

/// How k of E experts are chosen and weighed. The correction of an expert is added to its score for the choice alone.
/// The weights are scale * score, with `normalize` scale * score / (sum of the chosen scores + epsilon).
struct Routing {
  int64_t k = 1;
  RouterScore score = RouterScore::softmax;
  int64_t groups = 1, top_groups = 1;  ///< consecutive experts; only those of the best top_groups can be chosen
  GroupScore group_score = GroupScore::best;
  float jitter = 0;            ///< of sparse_mixer: (best - logit) / max(|logit|, best) may be twice this
  bool logits_choose = false;  ///< not their scores (chosen_softmax: anyway)
  bool normalize = false;
  float epsilon = 0;
  float scale = 1;
};

/// chosen [T, k] i32, the host's: experts in rising order; weights [T, k] f32 in that order. logits [T, E], correction
/// [E] or undefined. Of equal scores the expert with the lower number is better; NaN is worse than every number.
void route(const Tensor& logits, const Tensor& correction, const Routing& routing, Tensor& chosen, Tensor& weights);
/// dlogits [T, E] = gradient from dweights [T, k]; the choice has none.
void route_backward(const Tensor& dweights, const Tensor& logits, const Tensor& chosen, const Routing& routing,
                    Tensor& dlogits);

/// One in the sums of router_balance: sums of whole numbers do not depend on their order.
inline constexpr double kBalanceUnit = 1 << 26;
/// sums [E] i64, the host's, += the softmax of every row of logits [T, E], each rounded to a multiple of 1 /
/// kBalanceUnit and multiplied by it.
void router_balance(const Tensor& logits, Tensor& sums);
/// dlogits [T, E] += the gradient of sum over t, e of dprobabilities[e] * softmax(logits[t])[e].
void router_balance_backward(const Tensor& logits, const Tensor& dprobabilities, Tensor& dlogits);

}  // namespace nibble::ops
