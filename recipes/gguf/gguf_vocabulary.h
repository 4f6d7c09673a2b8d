#pragma once
// A tokenizer as llama.cpp wants it in the metadata of a GGUF file.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/io/gguf/gguf.h"

namespace nibble {

/// Ends of a text for which llama.cpp has no key left; it knows most by their names.
inline constexpr const char* kGgufOtherEnds = "nibble.other_eos_token_ids";

struct GgufVocabulary {
  std::vector<std::pair<std::string, GgufValue>> metadata;
  /// Steps of the tokenizer that llama.cpp leaves out, whatever the file says, each with what that means.
  std::vector<std::string> left_out;
};

/// tokenizer.ggml.* and tokenizer.chat_template for the tokenizer of a model directory: "llama" (sentencepiece BPE,
/// from tokenizer.model or a tokenizer.json of that kind) or "gpt2" (byte-level BPE) with the name of its
/// pre-tokenizer, as llama.cpp's own converter writes them. vocab_size: rows of the embedding; ids that the tokenizer
/// lacks become unused tokens; ends: ids that end a text to the model. Empty where the directory has no tokenizer.
/// Throws UsageError for a tokenizer that llama.cpp would not read in the same way, but for `left_out`.
GgufVocabulary gguf_vocabulary(const std::filesystem::path& directory, int64_t vocab_size,
                               const std::vector<int32_t>& ends = {});

}  // namespace nibble
