#pragma once
// The regular expressions by which published byte-level tokenizers cut a text, letter by letter.

namespace nibble {

/// Llama 3 (llama-models' tokenizer.py, tokenizer.json of Llama 3.1).
inline constexpr const char* kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Qwen2, Qwen2.5, Qwen3.
inline constexpr const char* kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace nibble
