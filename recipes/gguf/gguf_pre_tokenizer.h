#pragma once
// What llama.cpp does to a text before it merges, held against what a tokenizer.json asks for.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace nibble {

/// Throws the UsageError of what llama.cpp has no name for.
[[noreturn]] void refuse_unnamed(const std::filesystem::path& place, const std::string& what);

/// tokenizer.ggml.pre of a byte-level BPE: the name by which llama.cpp (b11549) knows these steps ("gpt-2",
/// "llama-bpe", ...). `file` is the whole tokenizer.json; place: its path. Throws UsageError naming the step for
/// pre-tokenizers it has no name for, for a blank put before the text, and for parts of words with marks of their own
/// (end_of_word_suffix, continuing_subword_prefix).
std::string gguf_pre_tokenizer(const nlohmann::json& file, const std::filesystem::path& place);

/// Throws UsageError naming a normalizer or pre-tokenizer that llama.cpp does not have for its kind of vocabulary:
/// byte_level: only NFC, which llama.cpp has none of either but for which it has tokenizers (see gguf_left_out);
/// else blanks as "▁" and one put before the text.
void refuse_other_normalizers(const nlohmann::json& file, bool byte_level, const std::filesystem::path& place);

/// Steps of a tokenizer.json that passed those two which llama.cpp leaves out, each with what that means for ids.
std::vector<std::string> gguf_left_out(const nlohmann::json& file);

}  // namespace nibble
