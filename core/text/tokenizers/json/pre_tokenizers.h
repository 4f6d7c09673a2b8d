#pragma once
// The "pre_tokenizer" of tokenizer.json: steps that cut a text in the parts that become tokens one by one.

#include <functional>
#include <vector>

#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/split_text.h"

namespace nibble {

struct PreTokenizer {
  std::function<void(SplitText& text)> apply;
  bool needs_origins = false;  ///< whether it must know where a piece comes from in the original text
};

using PreTokenizers = std::vector<PreTokenizer>;

/// The steps as tokenizer.json describes them, sequences laid flat. Known: Split, ByteLevel, Metaspace, Digits,
/// Punctuation, BertPreTokenizer, Whitespace, WhitespaceSplit, CharDelimiterSplit, UnicodeScripts, FixedLength,
/// Sequence. InputError naming another one.
PreTokenizers read_pre_tokenizers(const JsonFields& description);

}  // namespace nibble
