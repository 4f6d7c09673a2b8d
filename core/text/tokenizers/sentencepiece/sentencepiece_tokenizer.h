#pragma once
// The tokenizer of a tokenizer.model file: libsentencepiece behind the Tokenizer interface.

#include <memory>
#include <string>

#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// Opens the content of a tokenizer.model, checked first (sentencepiece_model.h); `place` names it in errors. Ids are
/// the library's; control pieces that the text spells become their token, which the library alone does not do.
/// `prefix_after_special`: the blank that the model puts in front of a text is also put after each such token (`legacy`
/// in tokenizer_config.json), not only at the start. Throws InputError.
std::unique_ptr<Tokenizer> open_sentencepiece(std::string bytes, const std::string& place,
                                              bool prefix_after_special = true);

}  // namespace nibble
