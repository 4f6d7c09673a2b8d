#include "nibble/core/text/tokenizers/json/normalizers.h"

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/models/byte_level.h"
#include "nibble/core/text/unicode/characters.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

Normalizer replace(const Pattern& pattern, const std::string& content) {
  return {[=](std::string_view text, Rewriter& out) { replace_matches(pattern, text, content, out); }};
}

Normalizer prepend(const std::string& prefix) {
  const auto normalize = [=](std::string_view text, Rewriter& out) {
    out.replace(0, prefix);
    out.keep(text.size());
  };
  return {normalize, [](std::string_view text) { return text.empty(); }};
}

Normalizer strip(bool left, bool right) {
  return {[=](std::string_view text, Rewriter& out) {
    size_t begin = 0, end = 0;
    bool seen = false;
    for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
      if (is_white_space(utf8_at(text, at))) continue;
      if (!seen) begin = at;
      seen = true;
      end = at + utf8_length(text[at]);
    }
    if (!seen) begin = end = left ? text.size() : 0;
    if (!left) begin = 0;
    if (!right) end = text.size();
    out.replace(begin, "");
    out.keep(end - begin);
    out.replace(text.size() - end, "");
  }};
}

void spell_bytes(std::string_view text, Rewriter& out) {
  for (const char byte : text) out.replace(1, byte_level_character(static_cast<unsigned char>(byte)));
}

void add_bert(const JsonFields& from, Normalizers& steps) {
  const bool lowercase = from.boolean_or("lowercase", true);
  if (from.boolean_or("clean_text", true)) steps.push_back(bert_cleaning());
  if (from.boolean_or("handle_chinese_chars", true)) steps.push_back(bert_ideographs());
  if (from.boolean_or("strip_accents", lowercase)) {
    steps.push_back(unicode_normalizer("NFD"));
    steps.push_back(without_characters(is_nonspacing_mark));
  }
  if (lowercase) steps.push_back(lower_case());
}

void add_normalizer(const JsonFields& from, Normalizers& steps) {
  const std::string type = from.string("type");
  if (type == "Sequence") {
    const JsonFields list = from.at("normalizers");
    for (size_t k = 0; k < list.size(); ++k) add_normalizer(list.item(k), steps);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    steps.push_back(unicode_normalizer(type));
  } else if (type == "Lowercase") {
    steps.push_back(lower_case());
  } else if (type == "StripAccents") {
    steps.push_back(without_characters(is_mark));
  } else if (type == "Strip") {
    steps.push_back(strip(from.boolean_or("strip_left", true), from.boolean_or("strip_right", true)));
  } else if (type == "Replace") {
    steps.push_back(replace(read_pattern(from.at("pattern")), from.string("content")));
  } else if (type == "Prepend") {
    steps.push_back(prepend(from.string("prepend")));
  } else if (type == "BertNormalizer") {
    add_bert(from, steps);
  } else if (type == "Nmt") {
    steps.push_back(nmt_cleaning());
  } else if (type == "Precompiled") {
    steps.push_back(precompiled_normalizer(from.at("precompiled_charsmap")));
  } else if (type == "ByteLevel") {
    steps.push_back({spell_bytes});
  } else {
    from.fail("the normalizer '" + type + "' is not known");
  }
}

}  // namespace

Normalizers read_normalizers(const JsonFields& description) {
  Normalizers steps;
  if (!description.value().is_null()) add_normalizer(description, steps);
  return steps;
}

void apply_normalizers(std::span<const Normalizer> normalizers, SplitText& text) {
  for (const Normalizer& step : normalizers) {
    text.rewrite(step.leaves,
                 [&](const TextPiece&, std::string_view piece, Rewriter& out) { step.normalize(piece, out); });
  }
}

std::string normalized(const Normalizers& normalizers, std::string_view text) {
  SplitText whole(text, false);
  apply_normalizers(normalizers, whole);
  return std::string(whole.text());
}

Pattern read_pattern(const JsonFields& description) {
  if (description.value().is_string()) return string_pattern(description.string());
  if (description.has("String")) return string_pattern(description.string("String"));
  const JsonFields expression = description.at("Regex");
  return regular_expression(expression.string(), expression.place());
}

}  // namespace nibble
