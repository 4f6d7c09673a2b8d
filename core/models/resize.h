#pragma once
// More rows in the vocabulary than the checkpoint has, for tokens that were added to the tokenizer.

#include <functional>

#include "nibble/core/models/decoder.h"

namespace nibble {

/// The mean [...] of the rows of a table [count, ...], in `dtype`. rows: some of them.
Tensor mean_row(int64_t count, DType dtype, const std::function<Tensor(int64_t begin, int64_t end)>& rows,
                MemoryPool& pool);

/// UsageError for a vocabulary of `rows` tokens, more than the model's, where its head has no rows for all of them.
void check_growth(const DecoderConfig& config, int64_t rows);

/// Gives embedding and head `rows` rows; the new ones (and those of a head's bias, which are 0 where the head is tied)
/// are the mean of the old, as Transformers' resize_token_embeddings starts them but for its tiny noise. Frozen, in the
/// dtype they had. Nothing happens when there are as many already. Throws UsageError for fewer, for a packed head, and
/// as check_growth.
void resize_vocabulary(Decoder& decoder, int64_t rows, RankContext& rank);

}  // namespace nibble
