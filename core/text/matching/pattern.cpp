#include "nibble/core/text/matching/pattern.h"

#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

struct Part {
  uint32_t begin, end;
  bool match;
};

// Matches and what lies between them, in order.
std::vector<Part> parts_of(const Pattern& pattern, bool invert, std::string_view text) {
  std::vector<PatternMatch> matches;
  pattern(text, matches);
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t previous = 0;
  const auto add = [&](size_t begin, size_t end, bool match) {
    parts.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), match != invert});
  };
  for (const PatternMatch& match : matches) {
    if (match.begin > previous) add(previous, match.begin, false);
    add(match.begin, match.end, true);
    previous = match.end;
  }
  if (previous < text.size()) add(previous, text.size(), false);
  return parts;
}

}  // namespace

Pattern string_pattern(std::string literal) {
  return [literal = std::move(literal)](std::string_view text, std::vector<PatternMatch>& matches) {
    if (literal.empty()) return;
    for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size()))
      matches.push_back({at, at + literal.size()});
  };
}

Pattern character_pattern(std::function<bool(char32_t)> is) {
  return [is = std::move(is)](std::string_view text, std::vector<PatternMatch>& matches) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + utf8_length(text[at]);
      if (is(utf8_at(text, at))) matches.push_back({at, end});
      at = end;
    }
  };
}

void split_at(const Pattern& pattern, SplitBehavior behavior, bool invert, std::string_view text,
              std::vector<TextPiece>& pieces) {
  const std::vector<Part> parts = parts_of(pattern, invert, text);
  for (size_t k = 0; k < parts.size(); ++k) {
    const Part& part = parts[k];
    if (behavior == SplitBehavior::removed && part.match) continue;
    const bool same = k > 0 && parts[k - 1].match == part.match, other = k > 0 && !same;
    // Of matches in a row only the first, or the last, is merged.
    const bool merged = (behavior == SplitBehavior::contiguous && same) ||
                        (behavior == SplitBehavior::merged_with_previous && other && part.match) ||
                        (behavior == SplitBehavior::merged_with_next && other && !part.match);
    if (merged) {
      pieces.back().end = part.end;
    } else {
      pieces.push_back({part.begin, part.end});
    }
  }
}

void replace_matches(const Pattern& pattern, std::string_view text, std::string_view with, Rewriter& out) {
  std::vector<PatternMatch> matches;
  pattern(text, matches);
  size_t previous = 0;
  for (const PatternMatch& match : matches) {
    out.keep(match.begin - previous);
    out.replace(match.end - match.begin, with);
    previous = match.end;
  }
  out.keep(text.size() - previous);
}

}  // namespace nibble
