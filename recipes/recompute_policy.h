#pragma once
#include "nibble/core/models/decoder.h"
#include "nibble/recipes/recipe.h"

namespace nibble {

/// Bytes of activations that training keeps for one microbatch of `tokens` tokens with Recompute::none.
int64_t activation_bytes(const DecoderConfig& config, int64_t tokens, DType compute_dtype);

/// train.gradient_checkpointing; `auto` keeps all activations while they take at most half of the memory that is free
/// when the run starts, else recomputes block by block. Both give the same bits.
Recompute recompute_policy(const Recipe& recipe, const DecoderConfig& config);

}  // namespace nibble
