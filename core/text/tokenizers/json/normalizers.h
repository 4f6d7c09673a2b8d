#pragma once
// The "normalizer" of tokenizer.json: steps that rewrite a text before it is cut.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/split_text.h"

namespace nibble {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// True when `text` certainly stays as it is.
  virtual bool leaves(std::string_view) const { return false; }
  /// Writes the normal form of `text`, all of whose bytes are kept or replaced.
  virtual void normalize(std::string_view text, Rewriter& out) const = 0;
};

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

/// The steps of a normalizer as tokenizer.json describes it, sequences laid flat. Known: NFC, NFD, NFKC, NFKD,
/// Lowercase, Strip, StripAccents, Replace, Prepend, BertNormalizer, Nmt, Precompiled, ByteLevel, Sequence. InputError
/// naming another one.
Normalizers read_normalizers(const JsonFields& description);

/// Precompiled: sentencepiece's rules in base64, applied as the spm_precompiled crate does, by grapheme clusters.
std::unique_ptr<Normalizer> precompiled_normalizer(const JsonFields& charsmap);

/// Applies the steps one after the other to all pieces of `text` that are no tokens.
void apply_normalizers(std::span<const std::unique_ptr<Normalizer>> normalizers, SplitText& text);

/// A plain string's normal form.
std::string normalized(const Normalizers& normalizers, std::string_view text);

/// {"String": ...} or {"Regex": ...}, as Replace and Split have it.
std::unique_ptr<Pattern> read_pattern(const JsonFields& description);

}  // namespace nibble
