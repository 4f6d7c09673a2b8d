#include "nibble/recipes/evaluation/answer.h"

#include <algorithm>

namespace nibble {

namespace {

// The number that ends at byte `end` of text, digits in front of it: without the commas of thousands, and without what
// does not change its value.
std::string number_before(std::string_view text, size_t end) {
  size_t begin = end;
  while (begin > 0 && (is_digit(text[begin - 1]) || ((text[begin - 1] == ',' || text[begin - 1] == '.') && begin > 1 &&
                                                     is_digit(text[begin - 2])))) {
    --begin;
  }
  std::string digits;
  for (const char c : text.substr(begin, end - begin)) {
    if (c != ',') digits.push_back(c);
  }
  // "see 3.1.4" is no number with two points: its last part counts.
  if (std::count(digits.begin(), digits.end(), '.') > 1) digits.erase(0, digits.rfind('.') + 1);
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.ends_with('.')) digits.pop_back();
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  if (digits.starts_with('.')) digits.insert(0, "0");
  // A minus between two numbers is a sign of arithmetic.
  const bool negative = begin > 0 && text[begin - 1] == '-' && (begin < 2 || !is_digit(text[begin - 2]));
  return negative && digits != "0" ? "-" + digits : digits;
}

std::optional<std::string> last_number(std::string_view text) {
  for (size_t end = text.size(); end > 0; --end) {
    if (is_digit(text[end - 1])) return number_before(text, end);
  }
  return std::nullopt;
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

AnswerRule AnswerRule::regex(const std::string& pattern) {
  const PythonRegex own(pattern);  // its errors name the pattern alone
  AnswerRule rule(Kind::regex);
  rule.pattern_.emplace("(?s:.*)(?:" + pattern + ")");
  return rule;
}

std::optional<std::string> AnswerRule::find(std::string_view text) const {
  switch (kind_) {
    case Kind::number:
      return last_number(text);
    case Kind::last_line:
      return last_filled_line(text);
    default:
      return pattern_->first_group(text);
  }
}

}  // namespace nibble
