#include "nibble/core/text/chat/jinja/values/unicode_text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

namespace nibble::jinja {

namespace {

UChar32 uc(char32_t c) { return static_cast<UChar32>(c); }
uint32_t category(char32_t c) { return U_MASK(u_charType(uc(c))); }

std::string mapped(std::string_view text, icu::UnicodeString& (icu::UnicodeString::*change)(const icu::Locale&)) {
  icu::UnicodeString wide = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  std::string result;
  (wide.*change)(icu::Locale::getRoot()).toUTF8String(result);
  return result;
}

std::string title_of(char32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  // ICU's title case of a whole word also does the special forms ("ß" -> "Ss", digraphs).
  icu::UnicodeString word(uc(c));
  std::string result;
  word.toTitle(nullptr, icu::Locale::getRoot(), 0).toUTF8String(result);
  return result;
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

std::u32string code_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  for (size_t position = 0; position < text.size(); position += utf8_length(text[position]))
    points.push_back(utf8_at(text, position));
  return points;
}

std::string to_utf8(std::u32string_view code_points) {
  std::string text;
  text.reserve(code_points.size());
  for (const char32_t c : code_points) append_utf8(text, c);
  return text;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return u_isUWhiteSpace(uc(c));
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  return (category(c) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

bool is_decimal(char32_t c) { return u_charType(uc(c)) == U_DECIMAL_DIGIT_NUMBER; }

bool is_digit(char32_t c) {
  const int32_t type = u_getIntPropertyValue(uc(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

bool is_numeric_character(char32_t c) { return u_getIntPropertyValue(uc(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE; }
bool is_alphabetic(char32_t c) { return (category(c) & U_GC_L_MASK) != 0; }
bool is_lower(char32_t c) { return u_isULowercase(uc(c)); }
bool is_upper(char32_t c) { return u_isUUppercase(uc(c)); }
bool is_titlecase(char32_t c) { return u_charType(uc(c)) == U_TITLECASE_LETTER; }
bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_titlecase(c); }
bool starts_identifier(char32_t c) { return c == '_' || u_hasBinaryProperty(uc(c), UCHAR_XID_START); }
bool continues_identifier(char32_t c) { return u_hasBinaryProperty(uc(c), UCHAR_XID_CONTINUE); }
int decimal_value(char32_t c) { return is_decimal(c) ? u_charDigitValue(uc(c)) : -1; }

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::string to_upper(std::string_view text) {
  if (!is_ascii(text)) return mapped(text, &icu::UnicodeString::toUpper);
  std::string result(text);
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return result;
}

std::string to_lower(std::string_view text) {
  if (!is_ascii(text)) return mapped(text, &icu::UnicodeString::toLower);
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return result;
}

std::string fold_case(std::string_view text) {
  std::string result;
  icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())}).foldCase().toUTF8String(result);
  return result;
}

std::string swap_case(std::string_view text) {
  std::string result;
  for (const char32_t c : code_points(text)) {
    const std::string one = to_utf8({&c, 1});
    result += is_upper(c) ? to_lower(one) : is_lower(c) ? to_upper(one) : one;
  }
  return result;
}

std::string to_title(std::string_view text) {
  std::string result, run;  // a run of cased characters after its first one
  bool inside = false;
  for (const char32_t c : code_points(text)) {
    if (is_cased(c) && inside) {
      append_utf8(run, c);
    } else {
      result += to_lower(run);
      run.clear();
      if (is_cased(c)) {
        result += title_of(c);
      } else {
        append_utf8(result, c);
      }
    }
    inside = is_cased(c);
  }
  return result + to_lower(run);
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return "";
  const size_t first = utf8_length(text[0]);
  return title_of(utf8_at(text, 0)) + to_lower(text.substr(first));
}

std::string_view stripped(std::string_view text, bool left, bool right, const std::u32string* characters) {
  std::u32string sorted = characters ? *characters : std::u32string();
  std::sort(sorted.begin(), sorted.end());
  const auto goes = [&](char32_t c) {
    return characters ? std::binary_search(sorted.begin(), sorted.end(), c) : is_space(c);
  };
  while (left && !text.empty() && goes(utf8_at(text, 0))) text.remove_prefix(utf8_length(text[0]));
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!goes(utf8_at(text, last))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&#34;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace nibble::jinja
