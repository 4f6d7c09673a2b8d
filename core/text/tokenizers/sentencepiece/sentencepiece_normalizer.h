#pragma once
// sentencepiece's normalization of a text before it is cut in pieces.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/matching/prefix_trie.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_model.h"

namespace nibble {

/// The rules of a precompiled_charsmap: strings and what they become, in a double-array trie (darts-clone's layout).
class CharsMap {
 public:
  /// `blob` must have passed find_charsmap_flaw, or be empty.
  explicit CharsMap(std::string blob);

  /// The longest rule that fits the start of `text`: its length in bytes (0: none does) and what becomes of them.
  struct Rule {
    size_t length = 0;
    std::string_view becomes;
  };
  Rule longest(std::string_view text) const { return find(text, false); }
  /// The shortest one, which Hugging Face's tokenizers takes.
  Rule shortest(std::string_view text) const { return find(text, true); }

 private:
  Rule find(std::string_view text, bool first) const;
  uint32_t unit(size_t k) const;

  std::string blob_;
  std::string_view trie_, strings_;
};

/// A normalized text; byte k comes from the original from origin[k] on, origin[text.size()] is its end.
struct NormalizedSentence {
  std::string text;
  std::vector<uint32_t> origin;
};

/// Applies the rules, folds and trims blanks, puts the blank in front and writes blanks as U+2581, as the model says.
/// Strings of `user_defined` (values >= 0) stay as they are. With dummy_prefix false no blank is added.
class SentenceNormalizer {
 public:
  /// Refers to what it is given.
  SentenceNormalizer(const SentencePieceNormalizer& normalizer, const CharsMap& rules, const PrefixTrie& user_defined,
                     bool dummy_prefix, bool blank_as_suffix, std::string_view text);

  /// Appends `bytes` more of the normalized text, a few more or what there is; true at its end, where blanks that
  /// `sentence` ends with are trimmed (a caller that takes its front away leaves these) and the last origin is added.
  bool append(size_t bytes, NormalizedSentence& sentence);

 private:
  CharsMap::Rule next() const;
  void add(std::string_view bytes, size_t origin, NormalizedSentence& sentence) const;

  const CharsMap& rules_;
  const PrefixTrie& user_defined_;
  std::string_view blank_, text_;
  bool folds_, prefix_, suffix_;
  bool behind_blank_, any_ = false;
  size_t at_ = 0;
};

/// Length of the longest string of `trie` that `text` begins with; 0 where none does.
size_t longest_prefix(const PrefixTrie& trie, std::string_view text);

}  // namespace nibble
