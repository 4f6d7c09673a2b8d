#pragma once
// Which tokens play a part, from the JSON files beside a tokenizer.

#include <filesystem>

#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// Roles of `tokenizer` as tokenizer_config.json names them (null: none), then special_tokens_map.json, then the ids of
/// config.json, then what the tokenizer says itself; and the chat templates of tokenizer_config.json,
/// chat_template.json, chat_template.jinja and additional_chat_templates/*.jinja (a later one of these wins). Files
/// that are absent are passed over. Throws InputError for a broken one.
TokenRoles read_token_roles(const std::filesystem::path& directory, const Tokenizer& tokenizer);

}  // namespace nibble
