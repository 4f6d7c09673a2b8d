#pragma once
// llama.cpp's names of pre-tokenizers (tokenizer.ggml.pre), one row each, for reading and for writing GGUF files.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace nibble {

struct GgufPreTokenizer {
  std::vector<std::string> names;  ///< the first is the one to write
  std::vector<std::string> steps;  ///< of a tokenizer.json's pre_tokenizer, as pre_tokenizer_step() says them
  bool composes = false;           ///< NFC first
  bool ignore_merges = false;      ///< a piece that is a token is taken whole
  bool begins = false;             ///< BOS in front, where the file does not say
};

/// Null for a name that is not known.
const GgufPreTokenizer* find_gguf_pre_tokenizer(const std::string& name);
/// The one with these steps, and where several have them the one with `ignore_merges` too; null where there is none.
const GgufPreTokenizer* match_gguf_pre_tokenizer(const std::vector<std::string>& steps, bool ignore_merges);

/// A step of a tokenizer.json in one word, "gpt2" or "bytes" (ByteLevel), "digit", "digits", "punctuation"; a Split has
/// the name of the model that its expression was published with. "?" and the type for what is in no row.
std::string pre_tokenizer_step(const nlohmann::json& step);
/// The step that a row calls so.
nlohmann::json pre_tokenizer_json(const std::string& step);

}  // namespace nibble
