#pragma once
// A tokenizer as llama.cpp wants it in the metadata of a GGUF file.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/io/gguf.h"

namespace nibble {

/// tokenizer.ggml.* and tokenizer.chat_template for the tokenizer of a model directory: "llama" (sentencepiece BPE,
/// from tokenizer.model or a tokenizer.json of that kind) or "gpt2" (byte-level BPE) with the name of its
/// pre-tokenizer. vocab_size: rows of the embedding; ids that the tokenizer lacks become unused tokens. Empty where the
/// directory has no tokenizer. Throws UsageError for a tokenizer that llama.cpp would not read in the same way.
std::vector<std::pair<std::string, GgufValue>> gguf_vocabulary(const std::filesystem::path& directory,
                                                               int64_t vocab_size);

}  // namespace nibble
