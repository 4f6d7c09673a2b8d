#pragma once
// Making a tokenizer from text.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

struct TokenizerTraining {
  int32_t vocab_size = 32000;  ///< pieces, among them <unk>, <s>, </s> and the 256 bytes
  bool split_digits = true;    ///< each digit a piece of its own, as in Llama
};

/// Trains byte-pair encoding with sentencepiece, in the form of Llama's tokenizer: <unk> 0, <s> 1, </s> 2, then the
/// bytes as fallback, blanks as U+2581, no normalization. `next` puts the next text (UTF-8, split at newlines here)
/// into its argument, or returns false at the end. Returns the bytes of tokenizer.model. The same texts give the same
/// bytes. A corpus without enough different pairs gives fewer pieces than asked for. Throws UsageError where vocab_size
/// cannot hold the bytes and characters, InputError for an empty corpus or text that is not UTF-8.
std::string train_sentencepiece(const std::function<bool(std::string&)>& next, const TokenizerTraining& training);

/// Writes a trained model as a tokenizer directory that Transformers' LlamaTokenizer opens: tokenizer.model,
/// tokenizer_config.json, special_tokens_map.json. The directory appears whole or not at all; one that is there and not
/// empty is a UsageError unless it may be replaced.
void write_tokenizer(const std::string& model, const std::filesystem::path& directory,
                     Replace replace = Replace::nothing);

}  // namespace nibble
