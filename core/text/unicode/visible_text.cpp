#include "nibble/core/text/unicode/visible_text.h"

#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

bool steers(char32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

void append_byte(std::string& text, char byte) { text += formatted("\\x%02x", static_cast<unsigned char>(byte)); }

void append_visible(std::string& text, char32_t c, Lines lines) {
  if ((c < 0x20 && c != '\t' && !(c == '\n' && lines == Lines::many)) || c == 0x7F) {
    append_byte(text, static_cast<char>(c));
  } else if (steers(c)) {
    text += formatted("<U+%04X>", static_cast<unsigned>(c));
  } else {
    append_utf8(text, c);
  }
}

}  // namespace

std::string visible_text(std::string_view text, Lines lines) {
  std::string visible;
  while (!text.empty()) {
    const size_t valid = first_invalid_utf8(text);
    for (size_t position = 0; position < valid; position += utf8_length(text[position]))
      append_visible(visible, utf8_at(text, position), lines);
    text.remove_prefix(valid);
    if (text.empty()) break;
    append_byte(visible, text.front());
    text.remove_prefix(1);
  }
  return visible;
}

}  // namespace nibble
