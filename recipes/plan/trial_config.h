#pragma once
// The part of a model whose steps a SpeedTrial times.

#include "nibble/parallel/plan/job.h"

namespace nibble {

/// Few whole layers and few rows of the vocabulary, of which a rank has one of `tensor` shards. large: of layers so
/// large (SpeedTrial::is_large) that narrower ones give their speed. side_by_side, ranks: see SpeedTrial.
DecoderConfig trial_config(const PlanJob& job, bool large, int64_t tensor, int64_t side_by_side, int64_t ranks);

}  // namespace nibble
