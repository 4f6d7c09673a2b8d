#pragma once
// The "normalizer" of tokenizer.json: steps that rewrite a text before it is cut.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/split_text.h"

namespace nibble {

struct Normalizer {
  /// Writes the normal form of `text`, all of whose bytes are kept or replaced.
  std::function<void(std::string_view text, Rewriter& out)> normalize;
  /// True when `text` certainly stays as it is.
  std::function<bool(std::string_view text)> leaves = [](std::string_view) { return false; };
};

using Normalizers = std::vector<Normalizer>;

/// The steps of a normalizer as tokenizer.json describes it, sequences laid flat. Known: NFC, NFD, NFKC, NFKD,
/// Lowercase, Strip, StripAccents, Replace, Prepend, BertNormalizer, Nmt, Precompiled, ByteLevel, Sequence. InputError
/// naming another one.
Normalizers read_normalizers(const JsonFields& description);

// Steps with files of their own.

/// Precompiled: sentencepiece's rules in base64, applied as the spm_precompiled crate does, by grapheme clusters.
Normalizer precompiled_normalizer(const JsonFields& charsmap);
/// Unicode's normalization forms, by ICU: "NFC", "NFD", "NFKC" or "NFKD".
Normalizer unicode_normalizer(const std::string& form);
/// Unicode's full lower case of each character by itself (no context, so no final sigma).
Normalizer lower_case();
/// Drops the characters for which `drop` holds; `drop` must hold for none below U+0080.
Normalizer without_characters(std::function<bool(char32_t)> drop);
/// BERT: drops NUL, U+FFFD and control characters, makes every white space a blank.
Normalizer bert_cleaning();
/// BERT: blanks around CJK ideographs.
Normalizer bert_ideographs();
/// The part of sentencepiece's nmt_nfkc that is no NFKC: drops some control characters, makes others blanks.
Normalizer nmt_cleaning();

/// Applies the steps one after the other to all pieces of `text` that are no tokens.
void apply_normalizers(std::span<const Normalizer> normalizers, SplitText& text);

/// A plain string's normal form.
std::string normalized(const Normalizers& normalizers, std::string_view text);

/// {"String": ...} or {"Regex": ...}, as Replace and Split have it.
Pattern read_pattern(const JsonFields& description);

}  // namespace nibble
