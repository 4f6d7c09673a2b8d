#pragma once
// What counts of an answer when it is compared: data with worked solutions says it in the last number or line.

#include <optional>
#include <string>
#include <string_view>

#include "nibble/core/text/matching/python_regex.h"

namespace nibble {

/// Of ASCII, whatever the locale.
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The last number of a text, "-1,234.50" as "-1234.50" and ".5" as "0.5": digits with commas between thousands, a
/// fraction and a sign. Nothing where there is no digit.
std::optional<std::string> last_number(std::string_view text);

class AnswerRule {
 public:
  /// The last number, "1,234.50" as "1234.5": GSM8K's and most others'.
  static AnswerRule number() { return AnswerRule(Kind::number); }
  /// The last line that is not blank, without blanks around it.
  static AnswerRule last_line() { return AnswerRule(Kind::last_line); }
  /// The first group of the last match of `pattern` (Python's re). Throws UsageError naming what is wrong with it.
  static AnswerRule regex(const std::string& pattern);

  /// What counts of `text`; nothing where it is not there.
  std::optional<std::string> find(std::string_view text) const;

 private:
  enum class Kind : unsigned char { number, last_line, regex };
  explicit AnswerRule(Kind kind) : kind_(kind) {}

  Kind kind_;
  std::optional<PythonRegex> pattern_;
};

}  // namespace nibble
