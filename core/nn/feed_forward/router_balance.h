#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble {

/// The load-balancing loss of a step (Shazeer et al. 2017, Fedus et al. 2021, as Transformers computes it): E sum over
/// e of f_e P_e, f_e how often e has one of the k best logits, P_e its mean probability by softmax, both per token and
/// layer of the whole step; a correction and groups are left aside. Only the probabilities carry gradients, so f has to
/// be known before the first backward pass: a pass without gradients counts.
struct RouterBalance {
  /// count: of experts; of_loss: what the loss is multiplied by.
  RouterBalance(int64_t count, double of_loss) : coefficient(of_loss), counts(static_cast<size_t>(2 * count + 1)) {}

  int64_t experts() const { return std::ssize(counts) / 2; }
  /// After counting: the loss times its coefficient, and dprobabilities [E] of every row of logits.
  double loss() const;
  std::vector<float> grads() const;

  double coefficient = 0;
  bool counting = true;  ///< passes count; else backward passes add the gradient
  /// Whole numbers, whose sums over microbatches and ranks are exact: choices of every expert, then the sums of
  /// probabilities of ops::router_balance, then the number of rows (tokens times layers).
  std::vector<double> counts;
};

}  // namespace nibble
