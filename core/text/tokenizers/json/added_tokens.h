#pragma once
// The "added_tokens" of tokenizer.json: tokens that are found in a text before anything else is done with it.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "nibble/core/text/matching/literal_matcher.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/json/split_text.h"
#include "nibble/core/text/tokenizers/models/token_model.h"

namespace nibble {

struct AddedToken {
  std::string content;
  bool single_word = false;  ///< not inside of a word
  bool lstrip = false;       ///< takes the white space in front with it
  bool rstrip = false;       ///< and that behind
  bool normalized = true;    ///< looked for in the normalized text, itself normalized
  bool special = false;      ///< left out of decoded text on request
  std::string spelling;      ///< how it shows and decodes: the content, normalized where `normalized` says so
};

class AddedTokens {
 public:
  AddedTokens() = default;

  /// Ids are those of the vocabulary where it has the token, else the next free ones, in order.
  AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& vocabulary, const Normalizers& normalizers);

  /// Cuts out the tokens that are not normalized, then the others (of a text that is normalized by then).
  void split_raw(SplitText& text) const { split(raw_, text); }
  void split_normalized(SplitText& text) const { split(normalized_, text); }

  bool any_normalized() const { return !normalized_.empty(); }

  /// Null where no added token has the id.
  const AddedToken* find(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view content) const;
  bool is_special(std::string_view content) const { return special_.contains(std::string(content)); }
  /// One more than the largest id, 0 without tokens.
  int32_t end() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }

 private:
  void split(const LiteralMatcher& matcher, SplitText& text) const;

  std::map<int32_t, AddedToken> tokens_;
  std::map<std::string, int32_t, std::less<>> ids_;
  std::set<std::string> special_;
  LiteralMatcher raw_, normalized_;
};

/// The list as tokenizer.json has it.
std::vector<AddedToken> read_added_tokens(const JsonFields& list);

/// One token's members as tokenizer.json and tokenizer_config.json write them.
AddedToken read_added_token(const JsonFields& from);

}  // namespace nibble
