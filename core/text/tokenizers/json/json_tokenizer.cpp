#include "nibble/core/text/tokenizers/json/json_tokenizer.h"

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/json/added_tokens.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/json/post_processor.h"
#include "nibble/core/text/tokenizers/json/pre_tokenizers.h"
#include "nibble/core/text/tokenizers/json/split_text.h"
#include "nibble/core/text/tokenizers/json/token_decoder.h"
#include "nibble/core/text/tokenizers/models/token_model.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

const nlohmann::json kNull;

JsonFields member_or_null(const JsonFields& from, const std::string& key) {
  return from.has(key) ? from.at(key) : JsonFields(kNull, from.place(), key);
}

class JsonTokenizer final : public Tokenizer {
 public:
  explicit JsonTokenizer(const JsonFields& from)
      : file_(from.place()),
        normalizers_(read_normalizers(member_or_null(from, "normalizer"))),
        pre_tokenizers_(read_pre_tokenizers(member_or_null(from, "pre_tokenizer"))),
        model_(read_token_model(from.at("model"))),
        post_processor_(member_or_null(from, "post_processor")),
        decoders_(read_token_decoders(member_or_null(from, "decoder"))),
        has_decoder_(from.has("decoder")) {
    if (from.has("added_tokens"))
      added_ = AddedTokens(read_added_tokens(from.at("added_tokens")), model_->vocabulary(), normalizers_);
    for (const auto& step : pre_tokenizers_) needs_origins_ = needs_origins_ || step->needs_origins();
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int32_t> ids;
    for (const TokenSpan& token : encode(text, add_special, false)) ids.push_back(token.id);
    return ids;
  }

  std::vector<TokenSpan> encode_with_offsets(std::string_view text, bool add_special) const override {
    return encode(text, add_special, true);
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      const std::string* token = find(id);
      if (token != nullptr && !(skip_special && added_.is_special(*token))) tokens.push_back(*token);
    }
    for (const auto& step : decoders_) step->apply(tokens);
    std::string text;
    for (size_t k = 0; k < tokens.size(); ++k) {
      if (!has_decoder_ && k > 0) text += ' ';
      text += tokens[k];
    }
    return text;
  }

  std::string token(int32_t id) const override {
    const std::string* found = find(id);
    if (found == nullptr) throw InputError(file_, "no token has the id " + std::to_string(id));
    return *found;
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const std::optional<int32_t> added = added_.id_of(token);
    return added ? added : model_->vocabulary().id_of(token);
  }

  bool is_special(int32_t id) const override {
    const std::string* token = find(id);
    return token != nullptr && added_.is_special(*token);
  }

  int32_t vocab_size() const override { return std::max(model_->vocabulary().end(), added_.end()); }

 private:
  const std::string* find(int32_t id) const {
    const AddedToken* added = added_.find(id);
    return added != nullptr ? &added->spelling : model_->vocabulary().token(id);
  }

  std::vector<TokenSpan> encode(std::string_view text, bool add_special, bool with_offsets) const {
    require_utf8(text, "text");
    SplitText split(text, with_offsets || needs_origins_);
    added_.split_raw(split);
    apply_normalizers(normalizers_, split);
    added_.split_normalized(split);
    for (const auto& step : pre_tokenizers_) step->apply(split);

    std::vector<TokenSpan> tokens;
    std::vector<ModelToken> word;
    const auto add = [&](int32_t id, size_t begin, size_t end) {
      const Origin origin = with_offsets ? split.span(begin, end) : Origin{};
      tokens.push_back({id, origin.begin, origin.end});
    };
    for (const TextPiece& piece : split.pieces()) {
      if (piece.token >= 0) {
        add(piece.token, piece.begin, piece.end);
        continue;
      }
      word.clear();
      model_->tokenize(split.text_of(piece), word);
      for (const ModelToken& token : word) add(token.id, piece.begin + token.begin, piece.begin + token.end);
    }
    return post_processor_.apply(std::move(tokens), add_special, text.size());
  }

  std::string file_;
  Normalizers normalizers_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<TokenModel> model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  TokenDecoders decoders_;
  bool has_decoder_;
  bool needs_origins_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const nlohmann::json& description, const std::string& file) {
  return std::make_unique<JsonTokenizer>(JsonFields(description, file));
}

}  // namespace nibble
