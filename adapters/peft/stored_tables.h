#pragma once
// Embedding and head as an adapter's file has them: PEFT saves them where they are trained (modules_to_save), have an
// adapter, or had their vocabulary resized.

#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// Parameters of the base ("lm_head.weight", "lm_head.bias") and the names of what the file has for them
/// ("lm_head.base_layer.weight"). A tied head that is not trained is the embedding. adapter: in_file_names.
std::vector<std::pair<std::string, std::string>> stored_tables(const PeftAdapter& adapter, const DecoderConfig& config);

/// Rows of the vocabulary that these and trainable_token_indices need; at least the model's.
int64_t rows_needed(const PeftAdapter& adapter, const DecoderConfig& config);

/// Whether two tensors, maybe of other dtypes, have the same shape and values.
bool same_values(const Tensor& a, const Tensor& b, MemoryPool& pool);

/// Leaves one of what PEFT saves under the names of both tied tables: the head's, which it reads last, of tables; the
/// embedding's of rows of tokens, as it reads no others.
void drop_tied_copies(PeftAdapter& adapter, const DecoderConfig& config);

}  // namespace nibble
