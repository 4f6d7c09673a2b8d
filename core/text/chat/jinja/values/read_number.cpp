#include "nibble/core/text/chat/jinja/values/read_number.h"

#include <cstdlib>
#include <limits>

#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

// Digits of other scripts become ASCII ones; underscores between digits go. Nullopt when an underscore stands
// elsewhere.
std::optional<std::string> plain(std::string_view text) {
  std::string result;
  const std::u32string points = code_points(stripped(text, true, true));
  const auto is_digit_at = [&](size_t k) {
    const char32_t c = points[k];
    return decimal_value(c) >= 0 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (size_t k = 0; k < points.size(); ++k) {
    if (points[k] == '_') {
      if (k == 0 || k + 1 == points.size() || !is_digit_at(k - 1) || !is_digit_at(k + 1)) return std::nullopt;
    } else if (const int digit = decimal_value(points[k]); digit >= 0) {
      result += static_cast<char>('0' + digit);
    } else {
      append_utf8(result, points[k]);
    }
  }
  return result;
}

}  // namespace

std::optional<Integer> read_integer(std::string_view text, unsigned base) {
  std::optional<std::string> digits = plain(text);
  if (!digits || digits->empty()) return std::nullopt;
  const bool negative = (*digits)[0] == '-';
  if (negative || (*digits)[0] == '+') digits->erase(0, 1);
  const char letter = digits->size() > 1 && (*digits)[0] == '0' ? static_cast<char>((*digits)[1] | 0x20) : '\0';
  const unsigned prefixed = letter == 'b' ? 2 : letter == 'o' ? 8 : letter == 'x' ? 16 : 0;
  if (prefixed != 0 && (base == prefixed || base == 0)) {
    digits->erase(0, 2);
    base = prefixed;
  } else if (base == 0) {
    if (digits->size() > 1 && (*digits)[0] == '0' && digits->find_first_not_of('0') != std::string::npos)
      return std::nullopt;
    base = 10;
  }
  const std::optional<Integer> number = Integer::parse(*digits, base);
  if (!number) return std::nullopt;
  return negative ? number->negated() : *number;
}

std::optional<double> read_float(std::string_view text) {
  std::optional<std::string> digits = plain(text);
  if (!digits || digits->empty()) return std::nullopt;
  std::string body = to_lower(*digits);
  const bool negative = body[0] == '-';
  if (negative || body[0] == '+') body.erase(0, 1);
  const double sign = negative ? -1 : 1;
  if (body == "inf" || body == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (body == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (body.empty() || body.find_first_not_of("0123456789.e+-") != std::string::npos || body[0] == '+' || body[0] == '-')
    return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(body.c_str(), &end);
  if (end != body.c_str() + body.size()) return std::nullopt;
  return sign * value;
}

}  // namespace nibble::jinja
