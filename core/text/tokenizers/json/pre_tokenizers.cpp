#include "nibble/core/text/tokenizers/json/pre_tokenizers.h"

#include <optional>

#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/models/byte_level.h"
#include "nibble/core/text/unicode/characters.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

class Split final : public PreTokenizer {
 public:
  Split(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(SplitText& text) const override {
    text.split([this](std::string_view piece, std::vector<TextPiece>& parts) {
      split_at(*pattern_, behavior_, invert_, piece, parts);
    });
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// The words of Rust's `\w+|[^\w\s]+`.
class Whitespace final : public PreTokenizer {
 public:
  void apply(SplitText& text) const override {
    text.split([](std::string_view piece, std::vector<TextPiece>& parts) {
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
    });
  }
};

// Cuts where the script changes; blanks go with what is around them, and those in front of all are dropped.
class UnicodeScripts final : public PreTokenizer {
 public:
  void apply(SplitText& text) const override {
    text.split([](std::string_view piece, std::vector<TextPiece>& parts) {
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
    });
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}
  void apply(SplitText& text) const override {
    text.split([this](std::string_view piece, std::vector<TextPiece>& parts) {
      size_t begin = 0, at = 0;
      while (at < piece.size()) {
        for (int64_t k = 0; k < length_ && at < piece.size(); ++k) at += utf8_length(piece[at]);
        parts.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(at)});
        begin = at;
      }
    });
  }

 private:
  int64_t length_;
};

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

class PrefixSpace final : public PreTokenizer {
 public:
  void apply(SplitText& text) const override {
    prepend(text, " ", [&](const TextPiece& piece) { return !text.text_of(piece).starts_with(' '); });
  }
};

// Spells each byte as a character.
class ByteLevel final : public PreTokenizer {
 public:
  void apply(SplitText& text) const override {
    text.rewrite(
        [](std::string_view piece) {
          for (const char c : piece) {
            if (c < '!' || c > '~') return false;
          }
          return true;
        },
        [](const TextPiece&, std::string_view piece, Rewriter& out) { write(piece, out); });
  }

 private:
  static void write(std::string_view piece, Rewriter& out) {
    size_t kept = 0;
    for (size_t at = 0; at < piece.size();) {
      if (piece[at] >= '!' && piece[at] <= '~') {
        ++at;
        continue;
      }
      out.keep(at - kept);
      // all bytes of a character come from all of it
      const size_t length = utf8_length(piece[at]);
      std::string characters;
      for (size_t k = 0; k < length; ++k) characters += byte_level_character(static_cast<unsigned char>(piece[at + k]));
      out.replace(length, characters);
      at += length;
      kept = at;
    }
    out.keep(piece.size() - kept);
  }
};

enum class PrependScheme : uint8_t { always, first, never };

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)),
        scheme_(scheme),
        split_(split),
        blank_(string_pattern(" ")),
        mark_(string_pattern(replacement_)) {}

  bool needs_origins() const override { return scheme_ == PrependScheme::first; }

  void apply(SplitText& text) const override {
    text.rewrite([](std::string_view piece) { return piece.find(' ') == std::string_view::npos; },
                 [&](const TextPiece&, std::string_view piece, Rewriter& out) {
                   replace_matches(*blank_, piece, replacement_, out);
                 });
    if (scheme_ != PrependScheme::never) {
      prepend(text, replacement_, [&](const TextPiece& piece) {
        return !text.text_of(piece).starts_with(replacement_) &&
               (scheme_ == PrependScheme::always || text.span(piece.begin, piece.end).begin == 0);
      });
    }
    if (!split_) return;
    text.split([this](std::string_view piece, std::vector<TextPiece>& parts) {
      split_at(*mark_, SplitBehavior::merged_with_next, false, piece, parts);
    });
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
  std::unique_ptr<Pattern> blank_, mark_;
};

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

std::unique_ptr<PreTokenizer> read_metaspace(const JsonFields& from) {
  // Before prepend_scheme there was add_prefix_space; where both are missing it is always.
  const std::string scheme =
      from.string_or("prepend_scheme", from.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    from.fail("the prepend_scheme '" + scheme + "' is not known");
  return std::make_unique<Metaspace>(from.string_or("replacement", "\xE2\x96\x81"),
                                     scheme == "always"  ? PrependScheme::always
                                     : scheme == "first" ? PrependScheme::first
                                                         : PrependScheme::never,
                                     from.boolean_or("split", true));
}

std::unique_ptr<PreTokenizer> split_on(bool (*is)(char32_t), SplitBehavior behavior) {
  return std::make_unique<Split>(character_pattern(is), behavior);
}

void add_pre_tokenizer(const JsonFields& from, PreTokenizers& steps) {
  const std::string type = from.string("type");
  if (type == "Sequence") {
    const JsonFields list = from.at("pretokenizers");
    for (size_t k = 0; k < list.size(); ++k) add_pre_tokenizer(list.item(k), steps);
  } else if (type == "Split") {
    steps.push_back(std::make_unique<Split>(read_pattern(from.at("pattern")),
                                            read_behavior(from, SplitBehavior::removed),
                                            from.boolean_or("invert", false)));
  } else if (type == "ByteLevel") {
    if (from.boolean_or("add_prefix_space", true)) steps.push_back(std::make_unique<PrefixSpace>());
    if (from.boolean_or("use_regex", true)) {
      steps.push_back(
          std::make_unique<Split>(regular_expression(kGpt2Expression, from.place()), SplitBehavior::isolated));
    }
    steps.push_back(std::make_unique<ByteLevel>());
  } else if (type == "Metaspace") {
    steps.push_back(read_metaspace(from));
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
    steps.push_back(std::make_unique<Whitespace>());
  } else if (type == "CharDelimiterSplit") {
    steps.push_back(std::make_unique<Split>(string_pattern(from.string("delimiter")), SplitBehavior::removed));
  } else if (type == "UnicodeScripts") {
    steps.push_back(std::make_unique<UnicodeScripts>());
  } else if (type == "FixedLength") {
    const int64_t length = from.integer_or("length", 5);
    if (length < 1) from.fail("the length is not positive");
    steps.push_back(std::make_unique<FixedLength>(length));
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
