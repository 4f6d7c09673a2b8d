#include <algorithm>
#include <cmath>

#include "nibble/core/text/tokenizers/models/best_path.h"
#include "nibble/core/text/tokenizers/models/piece_cache.h"
#include "nibble/core/text/tokenizers/models/token_model.h"

namespace nibble {

namespace {

constexpr double kUnknownPenalty = 10.0;  // below the smallest score of a token

// The treatment of unknown characters is that of Hugging Face's tokenizers.
class Unigram final : public TokenModel {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<int32_t> unknown, bool byte_fallback,
          std::string place)
      : TokenModel(std::move(vocabulary)),
        scores_(std::move(scores)),
        unknown_(unknown),
        byte_fallback_(byte_fallback),
        place_(std::move(place)) {
    std::vector<std::pair<std::string, int32_t>> entries;
    for (int32_t id = 0; id < this->vocabulary().end(); ++id) {
      if (const std::string* token = this->vocabulary().token(id))
        entries.emplace_back(*token, *this->vocabulary().id_of(*token));
    }
    trie_ = PrefixTrie(std::move(entries));
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& tokens) const override {
    if (cache_.find(piece, tokens)) return;
    const size_t first = tokens.size();
    for (const auto& [id, begin, end] : segment(piece)) emit(piece, begin, end, tokens);
    cache_.insert(piece, tokens.data() + first, tokens.data() + tokens.size());
  }

 private:
  // Unknown characters in a row are one token.
  std::vector<ModelToken> segment(std::string_view piece) const {
    double score = 0;
    const auto score_of = [&](int32_t id, size_t) { return std::optional(scores_[static_cast<size_t>(id)]); };
    std::vector<ModelToken> segments;
    for (const ModelToken& token : best_path(
             piece, trie_, score_of, unknown_score_, [&] { return unknown_id(); }, score)) {
      if (!segments.empty() && token.id == unknown_ && segments.back().id == unknown_) {
        segments.back().end = token.end;
      } else {
        segments.push_back(token);
      }
    }
    return segments;
  }

  void emit(std::string_view piece, uint32_t begin, uint32_t end, std::vector<ModelToken>& tokens) const {
    const std::string_view text = piece.substr(begin, end - begin);
    if (const std::optional<int32_t> id = vocabulary().id_of(text)) {
      tokens.push_back({*id, begin, end});
      return;
    }
    const size_t first = tokens.size();
    for (size_t k = 0; byte_fallback_ && k < text.size(); ++k) {
      const std::optional<int32_t> id = vocabulary().id_of(byte_token(static_cast<unsigned char>(text[k])));
      if (!id) {
        tokens.resize(first);
        break;
      }
      tokens.push_back({*id, begin, end});
    }
    if (tokens.size() == first) tokens.push_back({unknown_id(), begin, end});
  }

  int32_t unknown_id() const {
    if (!unknown_) JsonFields(nlohmann::json(), place_).fail("meets an unknown character and has no unk_id");
    return *unknown_;
  }

  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::optional<int32_t> unknown_;
  bool byte_fallback_;
  std::string place_;
  PrefixTrie trie_;
  mutable PieceCache cache_;
};

}  // namespace

std::unique_ptr<TokenModel> read_unigram_model(const JsonFields& from) {
  const JsonFields list = from.at("vocab");
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (size_t id = 0; id < list.size(); ++id) {
    const nlohmann::json& entry = list.value()[id];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        !std::isfinite(entry[1].get<double>()))
      list.item(id).fail("is not a token and its score");
    vocabulary.add(entry[0].get_ref<const std::string&>(), static_cast<int64_t>(id), list.place());
    scores.push_back(entry[1].get<double>());
  }
  if (scores.empty()) list.fail("is empty");
  std::optional<int32_t> unknown;
  if (from.has("unk_id")) {
    const int64_t id = from.at("unk_id").integer();
    if (id < 0 || static_cast<size_t>(id) >= scores.size()) from.at("unk_id").fail("is outside of the vocabulary");
    unknown = static_cast<int32_t>(id);
  }
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unknown,
                                   from.boolean_or("byte_fallback", false), from.place());
}

}  // namespace nibble
