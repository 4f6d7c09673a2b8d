#pragma once
// Normalizers that look at one character at a time.

#include <functional>
#include <memory>

#include "nibble/core/text/tokenizers/json/normalizers.h"

namespace nibble {

/// Unicode's full lower case of each character by itself (no context, so no final sigma).
std::unique_ptr<Normalizer> lower_case();
/// Drops the characters for which `drop` holds; `drop` must hold for none below U+0080.
std::unique_ptr<Normalizer> without_characters(std::function<bool(char32_t)> drop);
/// BERT: drops NUL, U+FFFD and control characters, makes every white space a blank.
std::unique_ptr<Normalizer> bert_cleaning();
/// BERT: blanks around CJK ideographs.
std::unique_ptr<Normalizer> bert_ideographs();
/// The part of sentencepiece's nmt_nfkc that is no NFKC: drops some control characters, makes others blanks.
std::unique_ptr<Normalizer> nmt_cleaning();

}  // namespace nibble
