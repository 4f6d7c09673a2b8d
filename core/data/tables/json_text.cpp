#include "nibble/core/data/tables/json_text.h"

namespace nibble {

void append_json(std::string& text, std::string_view value) {
  static constexpr char kHex[] = "0123456789abcdef";
  text.push_back('"');
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text.append({'\\', c});
    } else if (c == '\n') {
      text += "\\n";
    } else if (byte < 0x20) {
      text.append("\\u00").append({kHex[byte >> 4], kHex[byte & 15]});
    } else {
      text.push_back(c);
    }
  }
  text.push_back('"');
}

}  // namespace nibble
