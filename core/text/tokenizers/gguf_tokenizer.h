#pragma once
// The tokenizer in the metadata of a GGUF file (tokenizer.ggml.*, tokenizer.chat_template; ggml's docs/gguf.md).

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// The same tokenizer in the words of Hugging Face's files, content by name: tokenizer.json (byte-level BPE, "gpt2" to
/// llama.cpp) or tokenizer.model (sentencepiece BPE, "llama"), and tokenizer_config.json (special tokens, chat
/// template). Empty when the file has none. Throws InputError naming the key for a kind or a pre-tokenizer that is not
/// known, and for lists that are missing or of different lengths.
std::map<std::string, std::string> gguf_tokenizer_files(const GgufFile& file);

/// The tokenizer of a GGUF file, with its roles. Throws InputError as above, and when it has none.
std::unique_ptr<Tokenizer> open_gguf_tokenizer(const std::filesystem::path& path);

}  // namespace nibble
