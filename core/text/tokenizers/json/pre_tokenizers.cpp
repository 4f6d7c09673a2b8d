#include "nibble/core/text/tokenizers/json/pre_tokenizers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/models/byte_level.h"
#include "nibble/core/text/unicode/characters.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

using Parts = std::vector<TextPiece>;

/// cut(a piece, its parts)
PreTokenizer splitting(std::function<void(std::string_view, Parts&)> cut) {
  return {[cut = std::move(cut)](SplitText& text) { text.split(cut); }};
}

PreTokenizer split(const Pattern& pattern, SplitBehavior behavior, bool invert = false) {
  return splitting([=](std::string_view piece, Parts& parts) { split_at(pattern, behavior, invert, piece, parts); });
}

// The words of Rust's `\w+|[^\w\s]+`.
void split_words(std::string_view piece, Parts& parts) {
  int last = 0;
  for (size_t at = 0; at < piece.size();) {
    const char32_t c = utf8_at(piece, at);
    const int kind = is_word_character(c) ? 1 : is_white_space(c) ? 0 : 2;
    const auto begin = static_cast<uint32_t>(at);
    at += utf8_length(piece[at]);
    if (kind != 0 && kind == last) {
      parts.back().end = static_cast<uint32_t>(at);
    } else if (kind != 0) {
      parts.push_back({begin, static_cast<uint32_t>(at)});
    }
    last = kind;
  }
}

// Cuts where the script changes; blanks go with what is around them, and those in front of all are dropped.
void split_scripts(std::string_view piece, Parts& parts) {
  std::optional<int> last;
  for (size_t at = 0; at < piece.size(); at += utf8_length(piece[at])) {
    const std::optional<int> script = script_of(utf8_at(piece, at));
    if (!script) continue;
    if (last != script) {
      if (!parts.empty() && last) parts.back().end = static_cast<uint32_t>(at);
      parts.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(piece.size())});
    }
    last = script;
  }
}

PreTokenizer fixed_length(int64_t length) {
  return splitting([=](std::string_view piece, Parts& parts) {
    size_t begin = 0, at = 0;
    while (at < piece.size()) {
      for (int64_t k = 0; k < length && at < piece.size(); ++k) at += utf8_length(piece[at]);
      parts.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(at)});
      begin = at;
    }
  });
}

// Puts `prefix` in front of each piece where `wants` says so.
void prepend(SplitText& text, std::string_view prefix, const std::function<bool(const TextPiece&)>& wants) {
  bool any = false;
  for (const TextPiece& piece : text.pieces()) any = any || (piece.token < 0 && wants(piece));
  text.rewrite([&](std::string_view) { return !any; },
               [&](const TextPiece& piece, std::string_view content, Rewriter& out) {
                 if (wants(piece)) out.replace(0, prefix);
                 out.keep(content.size());
               });
}

void prefix_space(SplitText& text) {
  prepend(text, " ", [&](const TextPiece& piece) { return !text.text_of(piece).starts_with(' '); });
}

// Spells each byte as a character.
void spell_bytes_of_pieces(SplitText& text) {
  const auto is_plain = [](char c) { return c >= '!' && c <= '~'; };
  text.rewrite([&](std::string_view piece) { return std::ranges::all_of(piece, is_plain); },
               [&](const TextPiece&, std::string_view piece, Rewriter& out) {
                 size_t kept = 0;
                 for (size_t at = 0; at < piece.size();) {
                   if (is_plain(piece[at])) {
                     ++at;
                     continue;
                   }
                   out.keep(at - kept);
                   // all bytes of a character come from all of it
                   const size_t length = utf8_length(piece[at]);
                   std::string characters;
                   for (const char byte : piece.substr(at, length))
                     characters += byte_level_character(static_cast<unsigned char>(byte));
                   out.replace(length, characters);
                   at += length;
                   kept = at;
                 }
                 out.keep(piece.size() - kept);
               });
}

SplitBehavior read_behavior(const JsonFields& from, SplitBehavior otherwise) {
  if (!from.has("behavior")) return otherwise;
  const std::string name = from.string("behavior");
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  from.fail("the behavior '" + name + "' is not known");
}

void add_metaspace(const JsonFields& from, PreTokenizers& steps) {
  // Before prepend_scheme there was add_prefix_space; where both are missing it is always.
  const std::string scheme =
      from.string_or("prepend_scheme", from.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    from.fail("the prepend_scheme '" + scheme + "' is not known");
  const std::string replacement = from.string_or("replacement", "\xE2\x96\x81");
  const Pattern blank = string_pattern(" ");
  const auto apply = [=](SplitText& text) {
    text.rewrite([](std::string_view piece) { return piece.find(' ') == std::string_view::npos; },
                 [&](const TextPiece&, std::string_view piece, Rewriter& out) {
                   replace_matches(blank, piece, replacement, out);
                 });
    if (scheme == "never") return;
    prepend(text, replacement, [&](const TextPiece& piece) {
      return !text.text_of(piece).starts_with(replacement) &&
             (scheme == "always" || text.span(piece.begin, piece.end).begin == 0);
    });
  };
  steps.push_back({apply, scheme == "first"});
  if (from.boolean_or("split", true))
    steps.push_back(split(string_pattern(replacement), SplitBehavior::merged_with_next));
}

PreTokenizer split_on(bool (*is)(char32_t), SplitBehavior behavior) { return split(character_pattern(is), behavior); }

void add_pre_tokenizer(const JsonFields& from, PreTokenizers& steps) {
  const std::string type = from.string("type");
  if (type == "Sequence") {
    const JsonFields list = from.at("pretokenizers");
    for (size_t k = 0; k < list.size(); ++k) add_pre_tokenizer(list.item(k), steps);
  } else if (type == "Split") {
    steps.push_back(split(read_pattern(from.at("pattern")), read_behavior(from, SplitBehavior::removed),
                          from.boolean_or("invert", false)));
  } else if (type == "ByteLevel") {
    if (from.boolean_or("add_prefix_space", true)) steps.push_back({prefix_space});
    if (from.boolean_or("use_regex", true))
      steps.push_back(split(regular_expression(kGpt2Expression, from.place()), SplitBehavior::isolated));
    steps.push_back({spell_bytes_of_pieces});
  } else if (type == "Metaspace") {
    add_metaspace(from, steps);
  } else if (type == "Digits") {
    steps.push_back(split_on(
        is_numeric, from.boolean_or("individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous));
  } else if (type == "Punctuation") {
    steps.push_back(split_on(is_punctuation, read_behavior(from, SplitBehavior::isolated)));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(split_on(is_white_space, SplitBehavior::removed));
    steps.push_back(split_on(is_punctuation, SplitBehavior::isolated));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(split_on(is_white_space, SplitBehavior::removed));
  } else if (type == "Whitespace") {
    steps.push_back(splitting(split_words));
  } else if (type == "CharDelimiterSplit") {
    steps.push_back(split(string_pattern(from.string("delimiter")), SplitBehavior::removed));
  } else if (type == "UnicodeScripts") {
    steps.push_back(splitting(split_scripts));
  } else if (type == "FixedLength") {
    const int64_t length = from.integer_or("length", 5);
    if (length < 1) from.fail("the length is not positive");
    steps.push_back(fixed_length(length));
  } else {
    from.fail("the pre-tokenizer '" + type + "' is not known");
  }
}

}  // namespace

PreTokenizers read_pre_tokenizers(const JsonFields& description) {
  PreTokenizers steps;
  if (!description.value().is_null()) add_pre_tokenizer(description, steps);
  return steps;
}

}  // namespace nibble
