#include "nibble/core/text/tokenizers/json/unicode_normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include "nibble/core/base/error.h"
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

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(const icu::Normalizer2& form) : form_(form, known_characters()) {}

  bool leaves(std::string_view text) const override {
    size_t ascii = 0;
    while (ascii < text.size() && static_cast<unsigned char>(text[ascii]) < 0x80) ++ascii;
    if (ascii == text.size()) return true;
    UErrorCode status = U_ZERO_ERROR;
    return form_.isNormalizedUTF8(piece_of(text), status) != 0 && U_SUCCESS(status);
  }

  // Stretches between two boundaries do not interact; each is normalized by itself, so that its origin is known.
  void normalize(std::string_view text, Rewriter& out) const override {
    size_t begin = 0, at = 0;
    while (at < text.size()) {
      at += utf8_length(text[at]);
      if (at < text.size() && !form_.hasBoundaryBefore(static_cast<UChar32>(utf8_at(text, at)))) continue;
      write(text.substr(begin, at - begin), out);
      begin = at;
    }
  }

 private:
  void write(std::string_view stretch, Rewriter& out) const {
    if (stretch.size() == 1) return out.keep(1);
    std::string becomes;
    icu::StringByteSink<std::string> sink(&becomes);
    UErrorCode status = U_ZERO_ERROR;
    form_.normalizeUTF8(0, piece_of(stretch), sink, nullptr, status);
    NIBBLE_CHECK(U_SUCCESS(status), "ICU cannot normalize");
    if (becomes == stretch) {
      out.keep(stretch.size());
    } else {
      out.replace(stretch.size(), becomes);
    }
  }

  icu::FilteredNormalizer2 form_;
};

}  // namespace

std::unique_ptr<Normalizer> unicode_normalizer(const std::string& form) {
  return std::make_unique<UnicodeNormalizer>(*instance(form));
}

}  // namespace nibble
