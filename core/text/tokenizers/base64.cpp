#include "nibble/core/text/tokenizers/base64.h"

#include <cstdint>

namespace nibble {

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t k = 0; k < text.size(); k += 4) {
    uint32_t group = 0;
    for (size_t i = k; i < k + 4; ++i) {
      const char c = text[i];
      const int digit = c >= 'A' && c <= 'Z'                     ? c - 'A'
                        : c >= 'a' && c <= 'z'                   ? c - 'a' + 26
                        : c >= '0' && c <= '9'                   ? c - '0' + 52
                        : c == '+'                               ? 62
                        : c == '/'                               ? 63
                        : c == '=' && i >= text.size() - padding ? 0
                                                                 : -1;
      if (digit < 0) return std::nullopt;
      group = group << 6 | static_cast<uint32_t>(digit);
    }
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(group >> shift & 0xFF));
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace nibble
