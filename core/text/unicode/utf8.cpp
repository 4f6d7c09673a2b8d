#include "nibble/core/text/unicode/utf8.h"

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

struct Scan {
  size_t length = 0;  // bytes that belong together: a character, or the broken beginning of one (at least 1)
  bool valid = false;
};

// Table 3-7 of the Unicode standard: the second byte has its own range after E0, ED, F0 and F4.
Scan scan_character(std::string_view text, size_t position) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[position + k]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t k = 1; k < length; ++k) {
    if (position + k >= text.size()) return {k, false};
    const unsigned char next = byte(k);
    if (next < (k == 1 ? low : 0x80) || next > (k == 1 ? high : 0xBF)) return {k, false};
  }
  return {length, true};
}

}  // namespace

size_t first_invalid_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const Scan scan = scan_character(text, position);
    if (!scan.valid) return position;
    position += scan.length;
  }
  return position;
}

void require_utf8(std::string_view text, const std::string& place) {
  const size_t position = first_invalid_utf8(text);
  if (position != text.size())
    throw InputError(place, "not UTF-8 at byte " + std::to_string(position), "convert the text to UTF-8");
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t value) { text.push_back(static_cast<char>(static_cast<unsigned char>(value))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t position = 0; position < bytes.size();) {
    const Scan scan = scan_character(bytes, position);
    text += scan.valid ? bytes.substr(position, scan.length) : std::string_view("\xEF\xBF\xBD");
    position += scan.length;
  }
  return text;
}

}  // namespace nibble
