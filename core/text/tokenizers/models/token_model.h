#pragma once
// The "model" of tokenizer.json: from a pre-token to tokens of the vocabulary.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nibble/core/text/tokenizers/json/json_fields.h"

namespace nibble {

/// Tokens by id and by text. Ids may have gaps.
class Vocabulary {
 public:
  /// Adds a token; the last id given to a text counts. InputError (`place`) for an id below 0 or past 2^22.
  void add(std::string_view token, int64_t id, const std::string& place);

  std::optional<int32_t> id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
  }
  /// Null for an id that no token has.
  const std::string* token(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? tokens_[static_cast<size_t>(id)] : nullptr;
  }
  /// Number of tokens; one that is there twice (a list may have it so, and the last one counts) is counted twice.
  size_t size() const { return added_; }
  /// One more than the largest id.
  int32_t end() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;
  size_t added_ = 0;  // into the keys of ids_
};

/// A token and the bytes [begin, end) of the pre-token it stands for.
struct ModelToken {
  int32_t id = 0;
  uint32_t begin = 0, end = 0;
};

class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;

  /// Appends the tokens of a pre-token. Safe to call from many threads.
  virtual void tokenize(std::string_view piece, std::vector<ModelToken>& tokens) const = 0;

  /// Whether a pre-token has the tokens of its words (word_borders.h), one after the other.
  virtual bool cuts_at_word_borders() const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

/// The model that tokenizer.json describes: BPE, Unigram, WordPiece or WordLevel. InputError otherwise.
std::unique_ptr<TokenModel> read_token_model(const JsonFields& description);

std::unique_ptr<TokenModel> read_bpe_model(const JsonFields& description);
std::unique_ptr<TokenModel> read_unigram_model(const JsonFields& description);
std::unique_ptr<TokenModel> read_word_piece_model(const JsonFields& description);
std::unique_ptr<TokenModel> read_word_level_model(const JsonFields& description);

/// {"token": id, ...}
Vocabulary read_vocabulary(const JsonFields& description);

/// "<0x0A>": how byte tokens are spelled.
std::string byte_token(unsigned char byte);

}  // namespace nibble
