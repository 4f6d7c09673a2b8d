#pragma once
// JSON written value by value into a text.

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

namespace nibble {

/// A string in quotation marks; its bytes are not checked to be UTF-8.
void append_json(std::string& text, std::string_view value);

inline void append_json(std::string& text, bool value) { text += value ? "true" : "false"; }

/// A number; null where it is not finite. Of a whole floating one with ".0", as Python writes it.
template <typename T>
requires std::is_arithmetic_v<T>
void append_json(std::string& text, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {
      text += "null";
      return;
    }
  }
  char digits[32];
  const std::string_view number(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  text += number;
  if (std::is_floating_point_v<T> && number.find_first_of(".e") == number.npos) text += ".0";
}

}  // namespace nibble
