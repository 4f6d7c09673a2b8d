#pragma once
// sentencepiece's two ways of cutting a text, byte-pair encoding and unigram, for checked models. Encoding is our own
// for two reasons. Ids at ties: the packaged library (0.1.97) mixes float and double when it compares paths of a
// unigram model, so it gives other ids than 0.2, which other tools have. Speed: words seen before are found in a cache,
// which the library has not; with it Llama 2's model encodes 35 MB/s on one core instead of 2 (commit 5801360).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_model.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// Encodes as sentencepiece 0.2 does, byte for byte in its arithmetic.
class SentencePieceEncoder {
 public:
  virtual ~SentencePieceEncoder() = default;

  /// Gives the tokens of `text` (UTF-8). Spans count from `offset`. With dummy_prefix false the blank in front of a
  /// text is not added.
  virtual void encode(std::string_view text, size_t offset, bool dummy_prefix, const TakeTokens& take) const = 0;
};

/// The encoder of a model, which must outlive it; null for the word and character models, which only the library has.
std::unique_ptr<SentencePieceEncoder> make_sentencepiece_encoder(const SentencePieceModel& model);

}  // namespace nibble
