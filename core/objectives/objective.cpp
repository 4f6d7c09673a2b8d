#include "nibble/core/objectives/objective.h"

namespace nibble {

LossCounts Objective::counts(const Batch& batch) const { return {.divisor = static_cast<double>(batch.label_tokens)}; }

}  // namespace nibble
