#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_normalizer.h"

#include <cstring>

#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

constexpr std::string_view kBlankMark = "\xE2\x96\x81";  // U+2581

}  // namespace

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
  const auto children = [](uint32_t u) { return static_cast<size_t>((u >> 10) << ((u & (1U << 9)) >> 6)); };
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

NormalizedSentence normalize_sentence(const SentencePieceNormalizer& normalizer, const CharsMap& rules,
                                      const PrefixTrie& user_defined, bool dummy_prefix, bool blank_as_suffix,
                                      std::string_view text) {
  const auto next = [&](size_t at) -> CharsMap::Rule {
    const std::string_view rest = text.substr(at);
    if (!user_defined.empty()) {
      if (const size_t length = longest_prefix(user_defined, rest); length > 0) return {length, rest.substr(0, length)};
    }
    CharsMap::Rule rule = rules.longest(rest);
    if (rule.length == 0) rule = {utf8_length_within(rest, 0), rest.substr(0, utf8_length_within(rest, 0))};
    return rule;
  };
  const std::string_view blank = normalizer.escape_whitespaces ? kBlankMark : " ";
  const bool folds = normalizer.remove_extra_whitespaces;
  NormalizedSentence result;
  result.text.reserve(text.size() + text.size() / 2 + 3);
  result.origin.reserve(text.size() + text.size() / 2 + 3);
  const auto add = [&](std::string_view bytes, size_t origin) {
    result.text += bytes;
    result.origin.insert(result.origin.end(), bytes.size(), static_cast<uint32_t>(origin));
  };

  size_t at = 0;
  while (folds && at < text.size()) {
    const CharsMap::Rule rule = next(at);
    if (rule.becomes != " ") break;
    at += rule.length;
  }
  if (at < text.size() && dummy_prefix && !blank_as_suffix) add(blank, at);
  const bool any = at < text.size();
  bool behind_blank = folds;
  while (at < text.size()) {
    const CharsMap::Rule rule = next(at);
    std::string_view becomes = rule.becomes;
    while (behind_blank && becomes.starts_with(' ')) becomes.remove_prefix(1);
    for (const char& byte : becomes) add(byte == ' ' ? blank : std::string_view(&byte, 1), at);
    if (!becomes.empty()) behind_blank = folds && becomes.ends_with(' ');
    at += rule.length;
  }
  size_t end = at;
  while (folds && result.text.ends_with(blank)) {
    result.text.resize(result.text.size() - blank.size());
    end = result.origin[result.text.size()];
    result.origin.resize(result.text.size());
  }
  if (any && dummy_prefix && blank_as_suffix) add(blank, end);
  result.origin.push_back(static_cast<uint32_t>(end));
  return result;
}

}  // namespace nibble
