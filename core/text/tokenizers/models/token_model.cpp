#include "nibble/core/text/tokenizers/models/token_model.h"

#include "nibble/core/base/error.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

constexpr int64_t kMaxId = int64_t{1} << 22;

class WordLevel final : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, std::optional<int32_t> unknown)
      : TokenModel(std::move(vocabulary)), unknown_(unknown) {}
  void tokenize(std::string_view piece, std::vector<ModelToken>& tokens) const override {
    const std::optional<int32_t> found = vocabulary().id_of(piece);
    const std::optional<int32_t> id = found ? found : unknown_;
    if (id) tokens.push_back({*id, 0, static_cast<uint32_t>(piece.size())});
  }

 private:
  std::optional<int32_t> unknown_;
};

// The longest token at the start, then the longest one for what is left, spelled with a prefix.
class WordPiece final : public TokenModel {
 public:
  WordPiece(Vocabulary vocabulary, int32_t unknown, std::string prefix, int64_t max_characters)
      : TokenModel(std::move(vocabulary)),
        unknown_(unknown),
        prefix_(std::move(prefix)),
        max_characters_(max_characters) {}

  void tokenize(std::string_view piece, std::vector<ModelToken>& tokens) const override {
    int64_t characters = 0;
    for (size_t at = 0; at < piece.size(); at += utf8_length(piece[at])) ++characters;
    const size_t first = tokens.size();
    if (characters > max_characters_ || !cut(piece, tokens)) {
      tokens.resize(first);
      tokens.push_back({unknown_, 0, static_cast<uint32_t>(piece.size())});
    }
  }

 private:
  bool cut(std::string_view piece, std::vector<ModelToken>& tokens) const {
    std::string spelled;
    for (size_t begin = 0; begin < piece.size();) {
      spelled = begin > 0 ? prefix_ : std::string();
      const size_t prefix = spelled.size();
      spelled += piece.substr(begin);
      std::optional<int32_t> id;
      while (spelled.size() > prefix && !(id = vocabulary().id_of(spelled))) {
        do {
          spelled.pop_back();
        } while (spelled.size() > prefix && (piece[begin + spelled.size() - prefix] & 0xC0) == 0x80);
      }
      if (!id) return false;
      const size_t end = begin + spelled.size() - prefix;
      tokens.push_back({*id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      begin = end;
    }
    return true;
  }

  int32_t unknown_;
  std::string prefix_;
  int64_t max_characters_;
};

}  // namespace

void Vocabulary::add(std::string_view token, int64_t id, const std::string& place) {
  if (id < 0 || id >= kMaxId) throw InputError(place, "the id " + std::to_string(id) + " is not possible");
  const auto entry = ids_.insert_or_assign(std::string(token), static_cast<int32_t>(id)).first;
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1, nullptr);
  tokens_[static_cast<size_t>(id)] = &entry->first;
  ++added_;
}

Vocabulary read_vocabulary(const JsonFields& description) {
  if (!description.value().is_object()) description.fail("is not a JSON object");
  Vocabulary vocabulary;
  for (const auto& [token, id] : description.value().items()) {
    if (!id.is_number_integer()) description.fail("the id of \"" + token + "\" is not an integer");
    vocabulary.add(token, id.get<int64_t>(), description.place());
  }
  return vocabulary;
}

std::string byte_token(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + '>';
}

std::unique_ptr<TokenModel> read_word_piece_model(const JsonFields& from) {
  Vocabulary vocabulary = read_vocabulary(from.at("vocab"));
  const std::optional<int32_t> unknown = vocabulary.id_of(from.string_or("unk_token", "[UNK]"));
  if (!unknown) from.fail("the unk_token is not in the vocabulary");
  return std::make_unique<WordPiece>(std::move(vocabulary), *unknown, from.string_or("continuing_subword_prefix", "##"),
                                     from.integer_or("max_input_chars_per_word", 100));
}

std::unique_ptr<TokenModel> read_word_level_model(const JsonFields& from) {
  Vocabulary vocabulary = read_vocabulary(from.at("vocab"));
  const std::optional<int32_t> unknown = vocabulary.id_of(from.string_or("unk_token", "<unk>"));
  return std::make_unique<WordLevel>(std::move(vocabulary), unknown);
}

std::unique_ptr<TokenModel> read_token_model(const JsonFields& from) {
  // Files of before 2021 have no type: what else they have tells.
  const std::string type = from.has("type")                       ? from.string("type")
                           : from.has("merges")                   ? "BPE"
                           : from.at("vocab").value().is_array()  ? "Unigram"
                           : from.has("max_input_chars_per_word") ? "WordPiece"
                                                                  : "WordLevel";
  if (type == "BPE") return read_bpe_model(from);
  if (type == "Unigram") return read_unigram_model(from);
  if (type == "WordPiece") return read_word_piece_model(from);
  if (type == "WordLevel") return read_word_level_model(from);
  from.fail("the model '" + type + "' is not known");
}

}  // namespace nibble
