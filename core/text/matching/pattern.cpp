#include "nibble/core/text/matching/pattern.h"

#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

class StringPattern final : public Pattern {
 public:
  explicit StringPattern(std::string literal) : literal_(std::move(literal)) {}
  void find_all(std::string_view text, std::vector<PatternMatch>& matches) const override {
    if (literal_.empty()) return;
    for (size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, at + literal_.size()))
      matches.push_back({at, at + literal_.size()});
  }

 private:
  std::string literal_;
};

class CharacterPattern final : public Pattern {
 public:
  explicit CharacterPattern(std::function<bool(char32_t)> is) : is_(std::move(is)) {}
  void find_all(std::string_view text, std::vector<PatternMatch>& matches) const override {
    for (size_t at = 0; at < text.size();) {
      const size_t end = at + utf8_length(text[at]);
      if (is_(utf8_at(text, at))) matches.push_back({at, end});
      at = end;
    }
  }

 private:
  std::function<bool(char32_t)> is_;
};

struct Part {
  uint32_t begin, end;
  bool match;
};

// Matches and what lies between them, in order.
std::vector<Part> parts_of(const Pattern& pattern, bool invert, std::string_view text) {
  std::vector<PatternMatch> matches;
  pattern.find_all(text, matches);
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

std::unique_ptr<Pattern> string_pattern(std::string literal) {
  return std::make_unique<StringPattern>(std::move(literal));
}

std::unique_ptr<Pattern> character_pattern(std::function<bool(char32_t)> is) {
  return std::make_unique<CharacterPattern>(std::move(is));
}

void split_at(const Pattern& pattern, SplitBehavior behavior, bool invert, std::string_view text,
              std::vector<TextPiece>& pieces) {
  const std::vector<Part> parts = parts_of(pattern, invert, text);
  for (size_t k = 0; k < parts.size(); ++k) {
    const Part& part = parts[k];
    const bool first = k == 0;
    switch (behavior) {
      case SplitBehavior::removed:
        if (!part.match) pieces.push_back({part.begin, part.end});
        break;
      case SplitBehavior::isolated:
        pieces.push_back({part.begin, part.end});
        break;
      case SplitBehavior::contiguous:
        if (!first && parts[k - 1].match == part.match) {
          pieces.back().end = part.end;
        } else {
          pieces.push_back({part.begin, part.end});
        }
        break;
      case SplitBehavior::merged_with_previous:  // of matches in a row only the first is merged
        if (!first && part.match && !parts[k - 1].match) {
          pieces.back().end = part.end;
        } else {
          pieces.push_back({part.begin, part.end});
        }
        break;
      case SplitBehavior::merged_with_next:  // of matches in a row only the last is merged
        if (!first && !part.match && parts[k - 1].match) {
          pieces.back().end = part.end;
        } else {
          pieces.push_back({part.begin, part.end});
        }
        break;
    }
  }
}

void replace_matches(const Pattern& pattern, std::string_view text, std::string_view with, Rewriter& out) {
  std::vector<PatternMatch> matches;
  pattern.find_all(text, matches);
  size_t previous = 0;
  for (const PatternMatch& match : matches) {
    out.keep(match.begin - previous);
    out.replace(match.end - match.begin, with);
    previous = match.end;
  }
  out.keep(text.size() - previous);
}

}  // namespace nibble
