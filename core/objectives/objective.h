#pragma once
// What a step optimizes: a function of the log-probabilities that the model gives to the label tokens of a batch.

#include <span>

#include "nibble/core/models/batch.h"

namespace nibble {

/// What an objective counts in a batch. Summed over a step, on all ranks, before its first forward pass, so that
/// microbatches and ranks of unequal size give what one large batch gives.
struct LossCounts {
  double divisor = 0;  ///< loss and gradients are sums, divided by this once; 0: there is nothing to learn
  double second = 0;   ///< whatever a second term of the loss is divided by
};

class Objective {
 public:
  virtual ~Objective() = default;

  /// Label tokens, unless an objective says otherwise: pairs, answers, groups. batch: without tokens where a rank only
  /// takes part in what others compute.
  virtual LossCounts counts(const Batch& batch) const;
};

/// The sum of -log p over the label tokens.
class NextToken final : public Objective {};

}  // namespace nibble
