#pragma once
// Text as Python sees it: a row of code points, with Python's classes of characters and changes of case (by ICU).
// All text here is well-formed UTF-8. For .cpp files of jinja/.

#include <string>
#include <string_view>

#include "nibble/core/text/unicode/utf8.h"

namespace nibble::jinja {

bool is_ascii(std::string_view text);
size_t count_code_points(std::string_view text);
std::u32string code_points(std::string_view text);
std::string to_utf8(std::u32string_view code_points);

/// str.isspace of one character; what strip() and split() take away.
bool is_space(char32_t c);
/// str.isprintable of one character.
bool is_printable(char32_t c);
/// Nd with a decimal value; isdecimal. Digit adds superscripts and the like; numeric adds fractions and more.
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric_character(char32_t c);
bool is_alphabetic(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_titlecase(char32_t c);
bool is_cased(char32_t c);
/// First or later character of an identifier.
bool starts_identifier(char32_t c);
bool continues_identifier(char32_t c);
/// Value of a decimal digit of any script, or -1.
int decimal_value(char32_t c);
/// Breaks that splitlines() knows besides \r\n.
bool is_line_break(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string fold_case(std::string_view text);
std::string swap_case(std::string_view text);
/// str.title(): the first cased character of every run of them.
std::string to_title(std::string_view text);
/// str.capitalize().
std::string capitalized(std::string_view text);

/// Text without white space (or without `characters`) at the chosen ends.
std::string_view stripped(std::string_view text, bool left, bool right, const std::u32string* characters = nullptr);

/// & < > " ' as HTML writes them.
std::string escape_html(std::string_view text);

}  // namespace nibble::jinja
