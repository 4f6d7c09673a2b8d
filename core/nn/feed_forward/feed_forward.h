#pragma once
// The seam between a layer and what it computes for every token by itself: an MLP, experts.

#include "nibble/core/nn/sublayer.h"

namespace nibble {

/// The second sublayer of a Block.
class FeedForward : public Sublayer {};

}  // namespace nibble
