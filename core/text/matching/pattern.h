#pragma once
// What texts are cut at and what is replaced in them: a string, a regular expression, or a class of characters.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/tokenizers/json/split_text.h"

namespace nibble {

/// Where a pattern matches, bytes [begin, end).
struct PatternMatch {
  size_t begin = 0, end = 0;
};

/// Appends matches that do not overlap, from left to right. Throws InputError when the search takes too long.
using Pattern = std::function<void(std::string_view text, std::vector<PatternMatch>& matches)>;

/// A literal string; the empty one matches nowhere.
Pattern string_pattern(std::string literal);
/// Each character for which `is` holds.
Pattern character_pattern(std::function<bool(char32_t)> is);
/// A regular expression in Oniguruma's own syntax, which Hugging Face's tokenizers takes them in. `place` names it in
/// errors: InputError where it is not one, or when a search backtracks too long.
Pattern regular_expression(const std::string& expression, const std::string& place);

/// What becomes of a match when a text is cut (SplitDelimiterBehavior of tokenizers).
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Appends the pieces of `text`. `invert`: what does not match counts as match.
void split_at(const Pattern& pattern, SplitBehavior behavior, bool invert, std::string_view text,
              std::vector<TextPiece>& pieces);

/// `text` with every match replaced by `with`, written to `out`.
void replace_matches(const Pattern& pattern, std::string_view text, std::string_view with, Rewriter& out);

}  // namespace nibble
