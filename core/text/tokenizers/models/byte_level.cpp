#include "nibble/core/text/tokenizers/models/byte_level.h"

#include <array>

#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

const char* const kGpt2Expression =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

namespace {

constexpr char32_t kFirstShifted = 0x100;  // bytes that do not print are numbered from here
constexpr size_t kCharacters = 0x100 + 68;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, kCharacters> bytes{};

  Alphabet() {
    bytes.fill(-1);
    char32_t shifted = kFirstShifted;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t character = prints ? static_cast<char32_t>(byte) : shifted++;
      append_utf8(characters[static_cast<size_t>(byte)], character);
      bytes[character] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_level_character(unsigned char byte) { return alphabet().characters[byte]; }

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size(); at += utf8_length(token[at])) {
    const char32_t character = utf8_at(token, at);
    const int byte = character < kCharacters ? alphabet().bytes[character] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  }
  return bytes;
}

}  // namespace nibble
