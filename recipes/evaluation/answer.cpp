#include "nibble/recipes/evaluation/answer.h"

#include <algorithm>
#include <cctype>

namespace nibble {

namespace {

size_t digits_before(std::string_view text, size_t end) {
  while (end > 0 && is_digit(text[end - 1])) --end;
  return end;
}

// Where the whole number that ends at byte `end` begins, with commas before three digits, or two of a longer one
// ("12,34,567").
size_t whole_before(std::string_view text, size_t end) {
  size_t begin = digits_before(text, end);
  if (end - begin != 3) return begin;
  while (begin > 1 && text[begin - 1] == ',' && is_digit(text[begin - 2])) {
    const size_t next = digits_before(text, begin - 1), digits = begin - 1 - next;
    if (digits > 3) break;
    begin = next;
    if (digits == 1) break;
  }
  return begin;
}

// Whether a point may begin a number there: "-.5", but not "v.5" or "...5".
bool begins_number(std::string_view text, size_t point) {
  if (point == 0) return true;
  const auto before = static_cast<unsigned char>(text[point - 1]);
  return before < 0x80 && before != '.' && std::isalnum(before) == 0;
}

// Without what does not change its value.
std::string shortest(std::string number) {
  const bool negative = number.starts_with('-');
  number.erase(0, negative ? 1 : 0);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.ends_with('.')) number.pop_back();
  }
  number.erase(0, std::min(number.find_first_not_of('0'), number.size() - 1));
  if (number.starts_with('.')) number.insert(0, "0");
  return negative && number != "0" ? "-" + number : number;
}

std::optional<std::string> last_filled_line(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t end = text.find_last_not_of(kBlank);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = text.substr(0, end + 1);
  line.remove_prefix(line.rfind('\n') + 1);  // npos + 1 is 0
  line.remove_prefix(line.find_first_not_of(kBlank));
  return std::string(line);
}

}  // namespace

std::optional<std::string> last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  size_t begin = whole_before(text, end);
  std::string fraction;
  if (const size_t digits = digits_before(text, end); digits > 0 && text[digits - 1] == '.') {
    const size_t point = digits - 1, whole = whole_before(text, point);
    // "see 3.1.4" is no number with two points: its last part counts.
    const bool section = whole < point && whole > 1 && text[whole - 1] == '.' && is_digit(text[whole - 2]);
    if (whole < point ? !section : begins_number(text, point)) {
      fraction = text.substr(point, end - point);
      begin = whole;
      end = point;
    }
  }
  std::string number(text.substr(begin, end - begin));
  std::erase(number, ',');
  if (number.empty()) number = "0";
  // A minus between two numbers is a sign of arithmetic.
  const bool negative = begin > 0 && text[begin - 1] == '-' && (begin < 2 || !is_digit(text[begin - 2]));
  return (negative ? "-" : "") + number + fraction;
}

AnswerRule AnswerRule::regex(const std::string& pattern) {
  AnswerRule rule(Kind::regex);
  rule.pattern_.emplace(pattern);
  return rule;
}

std::optional<std::string> AnswerRule::find(std::string_view text) const {
  switch (kind_) {
    case Kind::number: {
      const std::optional<std::string> number = last_number(text);
      return number ? std::optional(shortest(*number)) : std::nullopt;
    }
    case Kind::last_line:
      return last_filled_line(text);
    default:
      return pattern_->first_group_of_last(text);
  }
}

}  // namespace nibble
