#pragma once
// Rows of tables that are trained alone: trainable_token_indices.

#include "nibble/adapters/options.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// Gives the rows that the options name values of their own (f32) under their PEFT names
/// ("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"), starting as what the table has. A head
/// that is tied to the embedding sees its rows. Throws UsageError for a name that fits no table, for ids outside the
/// table, and for a table that is trained otherwise as well.
void train_tokens(Decoder& decoder, const AdapterOptions& options, bool trainable, RankContext& rank);

/// Makes embedding and head large enough for the ids that the options name.
void grow_for_tokens(Decoder& decoder, const AdapterOptions& options, RankContext& rank);

}  // namespace nibble
