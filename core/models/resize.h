#pragma once
// More rows in the vocabulary than the checkpoint has, for tokens that were added to the tokenizer.

#include "nibble/core/models/decoder.h"

namespace nibble {

/// Gives embedding and head `rows` rows; the new ones (and those of a head's bias) are the mean of the old, as
/// Transformers' resize_token_embeddings starts them but for its tiny noise. Frozen, in the dtype they had. Nothing
/// happens when there are as many already. Throws UsageError for fewer, and for a packed head.
void resize_vocabulary(Decoder& decoder, int64_t rows, RankContext& rank);

}  // namespace nibble
