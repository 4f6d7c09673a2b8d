#pragma once
// Where a text of a vocabulary with marks for blanks can be cut: before the first blank of a run. Where no token has
// such a place inside, none reaches over one, and the text's tokens are those of its words.

#include <string_view>

namespace nibble {

inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";  // U+2581, the blank of sentencepiece's vocabularies

inline bool is_word_border(std::string_view text, size_t at) {
  constexpr size_t kMark = kBlankMark.size();
  return at > 0 && text.substr(at, kMark) == kBlankMark && !text.substr(0, at).ends_with(kBlankMark);
}

/// The first border behind byte `from`; npos: there is none.
inline size_t next_word_border(std::string_view text, size_t from) {
  size_t at = text.find(kBlankMark, from + 1);
  while (at != std::string_view::npos && !is_word_border(text, at)) at = text.find(kBlankMark, at + 1);
  return at;
}

/// The last border; 0: there is none.
inline size_t last_word_border(std::string_view text) {
  size_t at = text.rfind(kBlankMark);
  while (at != std::string_view::npos && at > 0 && !is_word_border(text, at)) at = text.rfind(kBlankMark, at - 1);
  return at == std::string_view::npos ? 0 : at;
}

}  // namespace nibble
