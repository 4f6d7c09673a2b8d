#pragma once
// GPT-2's alphabet: each of the 256 bytes is a printable character, so that a vocabulary of bytes can be written as
// text.

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// The character of a byte, UTF-8.
std::string_view byte_level_character(unsigned char byte);

/// The bytes that `token` spells; nothing when it has a character outside of the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

/// GPT-2's expression for cutting a text in pre-tokens, in Oniguruma's syntax.
extern const char* const kGpt2Expression;

}  // namespace nibble
