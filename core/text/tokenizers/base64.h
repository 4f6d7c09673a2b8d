#pragma once
// Base64 (RFC 4648) as tokenizers' files hold it.

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// The bytes; nullopt for text that is not base64 with its padding.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace nibble
