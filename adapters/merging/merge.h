#pragma once
// An adapter dissolved into the weights it was trained beside: W + s B A, written as a plain model.

#include <filesystem>

#include "nibble/adapters/merging/merged_source.h"

namespace nibble {

struct MergeOptions {
  DType dtype = DType::bf16;           ///< of every float tensor written: bf16, f16 or f32
  Replace replace = Replace::nothing;  ///< what the target may be
  uint64_t shard_bytes = 5'000'000'000;
};

/// Writes the merged model to `out`, block of rows by block of rows. The sum is made in f32 and rounded once.
/// config.json loses its quantization_config and gets the new dtype. A tied head that the adapter changes (or whose
/// embedding it changes) is written as a tensor of its own and tie_word_embeddings becomes false. What ends a turn by
/// the adapter's tokenizer and template ends a text of the model too (complete_end_ids). Throws InputError when a part
/// of the adapter has no place in the base, NumericError when a value does not fit the dtype; UsageError,
/// IoError as ModelDirectoryWriter. Nothing appears at `out` unless all went well.
MergeReport merge_adapter(const TensorSource& base, const PeftAdapter& adapter, const std::filesystem::path& out,
                          const MergeOptions& options, MemoryPool& pool);

}  // namespace nibble
