#pragma once
// The "pre_tokenizer" of tokenizer.json: steps that cut a text in the parts that become tokens one by one.

#include <memory>
#include <vector>

#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/split_text.h"

namespace nibble {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(SplitText& text) const = 0;
  /// True when it must know where a piece comes from in the original text.
  virtual bool needs_origins() const { return false; }
};

using PreTokenizers = std::vector<std::unique_ptr<PreTokenizer>>;

/// The steps as tokenizer.json describes them, sequences laid flat. Known: Split, ByteLevel, Metaspace, Digits,
/// Punctuation, BertPreTokenizer, Whitespace, WhitespaceSplit, CharDelimiterSplit, UnicodeScripts, FixedLength,
/// Sequence. InputError naming another one.
PreTokenizers read_pre_tokenizers(const JsonFields& description);

}  // namespace nibble
