// Normalizers that look at one character at a time.

#include <unicode/uchar.h>

#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/unicode/characters.h"
#include "nibble/core/text/unicode/newer_characters.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

// `map` appends what becomes of a character and returns true, or returns false for one that stays.
Normalizer character_map(const std::function<bool(char32_t, std::string&)>& map) {
  const auto leaves = [=](std::string_view text) {
    std::string ignored;
    for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
      if (map(utf8_at(text, at), ignored)) return false;
    }
    return true;
  };
  const auto normalize = [=](std::string_view text, Rewriter& out) {
    std::string becomes;
    size_t kept = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t length = utf8_length(text[at]);
      becomes.clear();
      if (map(utf8_at(text, at), becomes)) {
        out.keep(at - kept);
        out.replace(length, becomes);
        kept = at + length;
      }
      at += length;
    }
    out.keep(text.size() - kept);
  };
  return {normalize, leaves};
}

bool lower(char32_t c, std::string& out) {
  if (c < 0x80) {
    if (c < 'A' || c > 'Z') return false;
    out.push_back(static_cast<char>(c + 32));
    return true;
  }
  if (c == 0x130) {  // the only character whose lower case is two, whatever stands beside it
    out += "i\xCC\x87";
    return true;
  }
  auto becomes = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
  if (becomes == c) becomes = newer_lower_case(c);
  if (becomes == c) return false;
  append_utf8(out, becomes);
  return true;
}

bool nmt_drops(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

bool nmt_blank(char32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

}  // namespace

Normalizer lower_case() { return character_map(lower); }

Normalizer without_characters(std::function<bool(char32_t)> drop) {
  return character_map([drop = std::move(drop)](char32_t c, std::string&) { return c >= 0x80 && drop(c); });
}

Normalizer bert_cleaning() {
  return character_map([](char32_t c, std::string& out) {
    if (c == 0 || c == 0xFFFD || is_bert_control(c)) return true;
    if (c == ' ' || !is_white_space(c)) return false;
    out.push_back(' ');
    return true;
  });
}

Normalizer bert_ideographs() {
  return character_map([](char32_t c, std::string& out) {
    if (!is_bert_ideograph(c)) return false;
    out.push_back(' ');
    append_utf8(out, c);
    out.push_back(' ');
    return true;
  });
}

Normalizer nmt_cleaning() {
  return character_map([](char32_t c, std::string& out) {
    if (nmt_drops(c)) return true;
    if (!nmt_blank(c)) return false;
    out.push_back(' ');
    return true;
  });
}

}  // namespace nibble
