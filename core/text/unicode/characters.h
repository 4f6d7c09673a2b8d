#pragma once
// Classes of characters, as the tokenizers that models come with were made with: Unicode's properties (by ICU) in the
// versions of Unicode that the tables inside Hugging Face's tokenizers 0.23 have (compared for every code point).

#include <optional>

namespace nibble {

/// White_Space (char::is_whitespace, and `\s` of Rust's expressions).
bool is_white_space(char32_t c);
/// A digit or other number: Nd, Nl, No (char::is_numeric).
bool is_numeric(char32_t c);
/// A letter, mark, decimal digit or connector (`\w` of Rust's expressions, UTS #18).
bool is_word_character(char32_t c);
/// ASCII's punctuation and symbols, and Unicode's punctuation (P*).
bool is_punctuation(char32_t c);
/// Any combining mark: Mn, Mc, Me.
bool is_mark(char32_t c);
/// Nonspacing mark: Mn.
bool is_nonspacing_mark(char32_t c);
/// Control, format or private use, but not tab, newline or carriage return (BERT's cleaning).
bool is_bert_control(char32_t c);
/// A number for the script of a character, Japanese kana counted as Han; nothing for the blank and for characters of no
/// script (Unknown).
std::optional<int> script_of(char32_t c);
/// A CJK ideograph in the blocks that BERT's tokenizer sets apart by blanks.
bool is_bert_ideograph(char32_t c);

}  // namespace nibble
