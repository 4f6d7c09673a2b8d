#include "nibble/core/text/unicode/characters.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

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

// Letters, marks and digits of Unicode 15.1 and 16, which ICU 72 does not know and Rust's regex does.
constexpr struct {
  char32_t first, last;
} kLaterWordCharacters[] = {{0x897, 0x897},     {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},
                            {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85},
                            {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
                            {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2},
                            {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2},
                            {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0}, {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A},
                            {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C}, {0x16D70, 0x16D79},
                            {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9}, {0x1E5D0, 0x1E5FA}, {0x2EBF0, 0x2EE5D}};

template <typename Ranges>
bool lies_in(char32_t c, const Ranges& ranges) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const auto& range) { return c >= range.first && c <= range.last; });
}

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
  return lies_in(c, kLaterNumbers);
}

bool is_word_character(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  return (category_mask(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_isUAlphabetic(static_cast<UChar32>(c)) || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL) ||
         (category_mask(c) == U_GC_CN_MASK && lies_in(c, kLaterWordCharacters));
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

std::optional<int> script_of(char32_t c) {
  constexpr char32_t kProlongedSound = 0x30FC;
  if (c == ' ' || came_later_than(c, 9)) return std::nullopt;
  if (c == kProlongedSound) return USCRIPT_HAN;
  // Characters whose script has changed since.
  if (c == 0x0589 || c == 0x061C) return USCRIPT_COMMON;
  if (c == 0x0953 || c == 0x0954) return USCRIPT_DEVANAGARI;
  UErrorCode status = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(c), &status);
  if (U_FAILURE(status) || script == USCRIPT_UNKNOWN) return std::nullopt;
  return script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA ? int{USCRIPT_HAN} : int{script};
}

bool is_bert_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

}  // namespace nibble
