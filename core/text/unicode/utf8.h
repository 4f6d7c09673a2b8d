#pragma once
// UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing above U+10FFFF.

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble {

/// The position of the first byte that is not part of a well-formed character; text.size() when all is well.
size_t first_invalid_utf8(std::string_view text);

/// Throws InputError naming `place` and the byte when text is not UTF-8.
void require_utf8(std::string_view text, const std::string& place);

/// Number of bytes of the character that starts with `lead`, in well-formed text.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// As much of that as there is of `text` from `position` on, for text that may be malformed.
inline size_t utf8_length_within(std::string_view text, size_t position) {
  const size_t length = utf8_length(text[position]);
  return length < text.size() - position ? length : text.size() - position;
}

/// The code point at `position` of well-formed text.
inline char32_t utf8_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t k) { return static_cast<char32_t>(static_cast<unsigned char>(text[position + k])); };
  switch (utf8_length(text[position])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

/// Appends a code point.
void append_utf8(std::string& text, char32_t code_point);

/// `bytes` with each maximal broken part of a sequence replaced by one U+FFFD (Unicode's recommended practice, and what
/// Rust's and Python's lossy conversions do).
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace nibble
