#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <memory>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

const icu::Normalizer2* instance(const std::string& form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = form == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                  : form == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                  : form == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                                   : icu::Normalizer2::getNFKDInstance(status);
  NIBBLE_CHECK(U_SUCCESS(status) && found != nullptr, "ICU has no normalization data");
  return found;
}

// tokenizers normalizes by the tables of Unicode 11; later characters stay as they are.
const icu::UnicodeSet& known_characters() {
  static const icu::UnicodeSet known = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(u"[:age=11.0:]", status);
    NIBBLE_CHECK(U_SUCCESS(status), "ICU has no data on the age of characters");
    set.freeze();
    return set;
  }();
  return known;
}

icu::StringPiece piece_of(std::string_view text) { return {text.data(), static_cast<int32_t>(text.size())}; }

void write(const icu::Normalizer2& form, std::string_view stretch, Rewriter& out) {
  if (stretch.size() == 1) return out.keep(1);
  std::string becomes;
  icu::StringByteSink<std::string> sink(&becomes);
  UErrorCode status = U_ZERO_ERROR;
  form.normalizeUTF8(0, piece_of(stretch), sink, nullptr, status);
  NIBBLE_CHECK(U_SUCCESS(status), "ICU cannot normalize");
  if (becomes == stretch) {
    out.keep(stretch.size());
  } else {
    out.replace(stretch.size(), becomes);
  }
}

}  // namespace

Normalizer unicode_normalizer(const std::string& name) {
  const auto form = std::make_shared<const icu::FilteredNormalizer2>(*instance(name), known_characters());
  const auto leaves = [form](std::string_view text) {
    size_t ascii = 0;
    while (ascii < text.size() && static_cast<unsigned char>(text[ascii]) < 0x80) ++ascii;
    if (ascii == text.size()) return true;
    UErrorCode status = U_ZERO_ERROR;
    return form->isNormalizedUTF8(piece_of(text), status) != 0 && U_SUCCESS(status);
  };
  // Stretches between two boundaries do not interact; each is normalized by itself, so that its origin is known.
  const auto normalize = [form](std::string_view text, Rewriter& out) {
    size_t begin = 0, at = 0;
    while (at < text.size()) {
      at += utf8_length(text[at]);
      if (at < text.size() && !form->hasBoundaryBefore(static_cast<UChar32>(utf8_at(text, at)))) continue;
      write(*form, text.substr(begin, at - begin), out);
      begin = at;
    }
  };
  return {normalize, leaves};
}

}  // namespace nibble
