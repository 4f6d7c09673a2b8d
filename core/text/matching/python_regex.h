#pragma once
// Regular expressions as Python programs write them in configurations.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// A regular expression in the dialect of Python's `re`, as PEFT and Transformers use it on module paths. Matching is
/// bounded: a pattern that explores too much ends with UsageError instead of hanging.
class PythonRegex {
 public:
  /// Throws UsageError naming the pattern and what is wrong with it.
  explicit PythonRegex(const std::string& pattern);

  /// re.fullmatch(pattern, text)
  bool matches_whole(std::string_view text) const;
  /// re.match(pattern, text): from the start, not necessarily to the end.
  bool matches_start(std::string_view text) const;
  /// re.search(pattern, text): anywhere.
  bool matches_within(std::string_view text) const;
  /// The text of the first group of re.match, if it matches and the group took part.
  std::optional<std::string> first_group(std::string_view text) const;
  /// The same of the last match of re.finditer.
  std::optional<std::string> first_group_of_last(std::string_view text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace nibble
