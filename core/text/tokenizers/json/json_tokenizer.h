#pragma once
// The tokenizer that a tokenizer.json of Hugging Face's `tokenizers` describes.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// Builds the pipeline of a tokenizer.json: added tokens, normalizer, pre-tokenizer, model, post-processor, decoder;
/// ids and decoded text are those of tokenizers 0.23. `padding` and `truncation` are ignored. `file` names it in
/// errors. Throws InputError for a part that is malformed or not known.
std::unique_ptr<Tokenizer> open_tokenizer_json(const nlohmann::json& description, const std::string& file);

/// What a tokenizer.json would say for a vocab.json with merges.txt: byte-level BPE with the pipeline of the class that
/// tokenizer_config.json names (GPT2Tokenizer where there is none; known are those of kClasses in
/// vocab_and_merges.cpp), its added tokens, and those of added_tokens.json and special_tokens_map.json. Throws
/// InputError for a class whose pipeline is not known.
nlohmann::json describe_vocab_and_merges(const std::filesystem::path& directory);

/// Whether a tokenizer.model is a rank file (tiktoken's form) and no sentencepiece model.
bool is_rank_file(std::string_view text);

/// What a tokenizer.json would say for the rank file that Llama 3 was published with: byte-level BPE whose merges are
/// the ranks, Llama 3's expression, its 256 special tokens behind the last rank, BOS in front of a text. Throws
/// InputError for a line that is malformed, ids that do not count up, or the same token twice.
nlohmann::json describe_rank_file(const std::string& text, const std::string& file);

}  // namespace nibble
