#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_normalizer.h"

#include <cstring>

#include "nibble/core/text/tokenizers/models/word_borders.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

CharsMap::CharsMap(std::string blob) : blob_(std::move(blob)) {
  if (blob_.empty()) return;
  uint32_t trie_bytes = 0;
  std::memcpy(&trie_bytes, blob_.data(), sizeof trie_bytes);
  trie_ = std::string_view(blob_).substr(sizeof trie_bytes, trie_bytes);
  strings_ = std::string_view(blob_).substr(sizeof trie_bytes + trie_bytes);
}

uint32_t CharsMap::unit(size_t k) const {
  uint32_t value = 0;
  std::memcpy(&value, trie_.data() + 4 * k, sizeof value);
  return value;
}

CharsMap::Rule CharsMap::find(std::string_view text, bool first) const {
  Rule rule;
  if (trie_.empty()) return rule;
  const auto children = [](uint32_t u) { return static_cast<size_t>(u >> 10) << ((u & (1U << 9)) >> 6); };
  size_t node = children(unit(0));
  for (size_t k = 0; k < text.size(); ++k) {
    const auto byte = static_cast<unsigned char>(text[k]);
    node ^= byte;
    const uint32_t at = unit(node);
    if ((at & (1U << 31 | 0xFF)) != byte) break;
    node ^= children(at);
    if ((at >> 8 & 1) != 0) {
      const size_t begin = unit(node) & 0x7FFFFFFF;
      rule = {k + 1, strings_.substr(begin, strings_.find('\0', begin) - begin)};
      if (first) break;
    }
  }
  return rule;
}

size_t longest_prefix(const PrefixTrie& trie, std::string_view text) {
  size_t longest = 0;
  int32_t node = PrefixTrie::kRoot;
  for (size_t k = 0; k < text.size(); ++k) {
    node = trie.step(node, static_cast<unsigned char>(text[k]));
    if (node == PrefixTrie::kNone) break;
    if (trie.value(node) >= 0) longest = k + 1;
  }
  return longest;
}

SentenceNormalizer::SentenceNormalizer(const SentencePieceNormalizer& normalizer, const CharsMap& rules,
                                       const PrefixTrie& user_defined, bool dummy_prefix, bool blank_as_suffix,
                                       std::string_view text)
    : rules_(rules),
      user_defined_(user_defined),
      blank_(normalizer.escape_whitespaces ? kBlankMark : " "),
      text_(text),
      folds_(normalizer.remove_extra_whitespaces),
      prefix_(dummy_prefix && !blank_as_suffix),
      suffix_(dummy_prefix && blank_as_suffix),
      behind_blank_(folds_) {
  while (folds_ && at_ < text_.size()) {
    const CharsMap::Rule rule = next();
    if (rule.becomes != " ") break;
    at_ += rule.length;
  }
}

CharsMap::Rule SentenceNormalizer::next() const {
  const std::string_view rest = text_.substr(at_);
  if (!user_defined_.empty()) {
    if (const size_t length = longest_prefix(user_defined_, rest); length > 0) return {length, rest.substr(0, length)};
  }
  const CharsMap::Rule rule = rules_.longest(rest);
  if (rule.length > 0) return rule;
  return {utf8_length_within(rest, 0), rest.substr(0, utf8_length_within(rest, 0))};
}

void SentenceNormalizer::add(std::string_view bytes, size_t origin, NormalizedSentence& sentence) const {
  sentence.text += bytes;
  sentence.origin.insert(sentence.origin.end(), bytes.size(), static_cast<uint32_t>(origin));
}

bool SentenceNormalizer::append(size_t bytes, NormalizedSentence& sentence) {
  const size_t wanted = sentence.text.size() + bytes;
  if (!any_ && at_ < text_.size() && prefix_) add(blank_, at_, sentence);
  any_ = any_ || at_ < text_.size();
  while (at_ < text_.size()) {
    if (sentence.text.size() >= wanted) return false;
    const CharsMap::Rule rule = next();
    std::string_view becomes = rule.becomes;
    while (behind_blank_ && becomes.starts_with(' ')) becomes.remove_prefix(1);
    for (const char& byte : becomes) add(byte == ' ' ? blank_ : std::string_view(&byte, 1), at_, sentence);
    if (!becomes.empty()) behind_blank_ = folds_ && becomes.ends_with(' ');
    at_ += rule.length;
  }
  size_t end = at_;
  while (folds_ && sentence.text.ends_with(blank_)) {
    sentence.text.resize(sentence.text.size() - blank_.size());
    end = sentence.origin[sentence.text.size()];
    sentence.origin.resize(sentence.text.size());
  }
  if (any_ && suffix_) add(blank_, end, sentence);
  sentence.origin.push_back(static_cast<uint32_t>(end));
  return true;
}

}  // namespace nibble
