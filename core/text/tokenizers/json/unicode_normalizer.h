#pragma once
// Unicode's normalization forms, by ICU.

#include <memory>
#include <string>

#include "nibble/core/text/tokenizers/json/normalizers.h"

namespace nibble {

/// `form` is "NFC", "NFD", "NFKC" or "NFKD".
std::unique_ptr<Normalizer> unicode_normalizer(const std::string& form);

}  // namespace nibble
