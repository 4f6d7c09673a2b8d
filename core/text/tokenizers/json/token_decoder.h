#pragma once
// The "decoder" of tokenizer.json: from the spelling of tokens back to text.

#include <functional>
#include <string>
#include <vector>

#include "nibble/core/text/tokenizers/json/json_fields.h"

namespace nibble {

/// Rewrites the strings; joined, those that the last step leaves are the text.
using TokenDecoder = std::function<void(std::vector<std::string>& tokens)>;
using TokenDecoders = std::vector<TokenDecoder>;

/// The steps as tokenizer.json describes them, sequences laid flat. Known: ByteLevel, ByteFallback, Fuse, Strip,
/// Replace, Metaspace, WordPiece, BPEDecoder, CTC, Sequence. InputError naming another one.
TokenDecoders read_token_decoders(const JsonFields& description);

}  // namespace nibble
