#pragma once
// The tokens that end an answer, where whoever generates looks for them.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "nibble/core/text/chat/chat_template.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// The tokenizer's EOS, and what the template (null: none) writes behind an answer if that is one special token.
std::vector<int32_t> turn_end_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template);
/// The same with the tokenizer's usual chat template, where it has one that is not broken.
std::vector<int32_t> turn_end_ids(const Tokenizer& tokenizer);

/// Completes the model in `directory` by those of its tokenizer that its files do not name, as Transformers' Trainer
/// does: config.json gets the EOS, generation_config.json (made where there is none) a list of them all, the former
/// ones last. A directory without a tokenizer, or with one that load_tokenizer does not read, stays as it is.
void complete_end_ids(const std::filesystem::path& directory);

}  // namespace nibble
