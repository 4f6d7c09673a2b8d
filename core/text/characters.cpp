#include "nibble/core/text/characters.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <iterator>

namespace nibble {

namespace {

uint32_t category_mask(char32_t c) { return U_MASK(u_charType(static_cast<UChar32>(c))); }

// The tables inside tokenizers are of different ages: a character that came later is in no class.
bool came_later_than(char32_t c, uint8_t unicode_version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > unicode_version || (age[0] == unicode_version && age[1] > 0);
}

// Numbers of Unicode 16 and 17, which ICU 72 does not know and Rust's standard library does.
constexpr struct {
  char32_t first, last;
} kLaterNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11DE0, 0x11DE9}, {0x16130, 0x16139},
                     {0x16D70, 0x16D79}, {0x16FF4, 0x16FF6}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA}};

// Characters whose category has changed since.
constexpr char32_t kSharadaSandhiMark = 0x111C9, kVedicArdhavisarga = 0x1CF2, kVedicRotatedArdhavisarga = 0x1CF3,
                   kHanunooPamudpod = 0x1734, kCanadianChi = 0x166D, kJavaneseKeret = 0xA9BD, kMongolianBaluda = 0x1885,
                   kMongolianThreeBaluda = 0x1886;

}  // namespace

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  if ((category_mask(c) & (U_GC_ND_MASK | U_GC_NL_MASK | U_GC_NO_MASK)) != 0) return true;
  return std::any_of(std::begin(kLaterNumbers), std::end(kLaterNumbers),
                     [c](const auto& range) { return c >= range.first && c <= range.last; });
}

bool is_word_character(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  return (category_mask(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_isUAlphabetic(static_cast<UChar32>(c)) || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  if (c == kCanadianChi || c == kSharadaSandhiMark) return true;
  return (category_mask(c) & U_GC_P_MASK) != 0 && !came_later_than(c, 8);
}

bool is_mark(char32_t c) {
  if (c < 0x300 || c == kSharadaSandhiMark) return false;
  if (c == kVedicArdhavisarga || c == kVedicRotatedArdhavisarga) return true;
  return (category_mask(c) & U_GC_M_MASK) != 0 && !came_later_than(c, 9);
}

bool is_nonspacing_mark(char32_t c) {
  if (c < 0x300 || c == kMongolianBaluda || c == kMongolianThreeBaluda || c == kJavaneseKeret ||
      c == kSharadaSandhiMark)
    return false;
  return c == kHanunooPamudpod || ((category_mask(c) & U_GC_MN_MASK) != 0 && !came_later_than(c, 8));
}

bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return (category_mask(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0 && !came_later_than(c, 8);
}

bool is_bert_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

}  // namespace nibble
