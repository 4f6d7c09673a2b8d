#include <unicode/brkiter.h>
#include <unicode/utext.h>

#include <memory>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/base64.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_model.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_normalizer.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

// Ends of the grapheme clusters of a text, bytes.
std::vector<size_t> grapheme_ends(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  UText* utf8 = utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status);
  NIBBLE_CHECK(U_SUCCESS(status), "ICU has no rules for characters");
  breaks->setText(utf8, status);
  std::vector<size_t> ends;
  for (int32_t end = breaks->next(); end != icu::BreakIterator::DONE; end = breaks->next())
    ends.push_back(static_cast<size_t>(end));
  utext_close(utf8);
  return ends;
}

bool write(const CharsMap& rules, std::string_view part, Rewriter& out) {
  const CharsMap::Rule rule = rules.shortest(part);
  if (rule.length == 0) return false;
  out.replace(part.size(), rule.becomes);
  return true;
}

}  // namespace

Normalizer precompiled_normalizer(const JsonFields& charsmap) {
  const std::optional<std::string> blob = decode_base64(charsmap.string());
  if (!blob) charsmap.fail("is not base64");
  if (const std::string flaw = find_charsmap_flaw(*blob); !flaw.empty()) charsmap.fail("is a table " + flaw);
  return {[rules = std::make_shared<const CharsMap>(*blob)](std::string_view text, Rewriter& out) {
    // A cluster that is short enough and begins with a rule's string becomes what the rule says, as a whole.
    constexpr size_t kShort = 6;
    size_t begin = 0;
    for (const size_t end : grapheme_ends(text)) {
      const std::string_view cluster = text.substr(begin, end - begin);
      begin = end;
      if (cluster.size() < kShort && write(*rules, cluster, out)) continue;
      for (size_t at = 0; at < cluster.size();) {
        const std::string_view character = cluster.substr(at, utf8_length(cluster[at]));
        if (!write(*rules, character, out)) out.keep(character.size());
        at += character.size();
      }
    }
  }};
}

}  // namespace nibble
