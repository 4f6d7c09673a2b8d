#pragma once
// More rows in the vocabulary than the checkpoint has, for tokens that were added to the tokenizer.

#include <functional>

#include "nibble/core/models/decoder.h"

namespace nibble {

/// The mean [...] of the rows of a table [count, ...], in `dtype`. rows: some of them.
Tensor mean_row(int64_t count, DType dtype, const std::function<Tensor(int64_t begin, int64_t end)>& rows,
                MemoryPool& pool);

/// Gives embedding and head `rows` rows; the new ones (and those of a head's bias, which are 0 where the head is tied)
/// are the mean of the old, as Transformers' resize_token_embeddings starts them but for its tiny noise. Frozen, in the
/// dtype they had. Nothing happens when there are as many already. Throws UsageError for fewer, and for a packed head.
void resize_vocabulary(Decoder& decoder, int64_t rows, RankContext& rank);

}  // namespace nibble
