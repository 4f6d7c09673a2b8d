#pragma once
// What Hugging Face's tokenizers know of characters that the system's Oniguruma and ICU do not.

#include <string>
#include <string_view>

namespace nibble {

/// `text` (UTF-8) with every character that Oniguruma 6.9.8 does not know, or knows to be of another kind, replaced by
/// one of as many bytes which it takes for what tokenizers' Oniguruma takes that character for: the same general
/// category and classes, and the same script where the script is not new. Offsets stay. `buffer` holds the result where
/// it is not `text` itself.
std::string_view with_stand_ins(std::string_view text, std::string& buffer);

/// Lower case of a character that got one after ICU 72; `c` itself for all others.
char32_t newer_lower_case(char32_t c);

}  // namespace nibble
