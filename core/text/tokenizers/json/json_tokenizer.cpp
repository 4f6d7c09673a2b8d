#include "nibble/core/text/tokenizers/json/json_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/json/added_tokens.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/json/post_processor.h"
#include "nibble/core/text/tokenizers/json/pre_tokenizers.h"
#include "nibble/core/text/tokenizers/json/split_text.h"
#include "nibble/core/text/tokenizers/json/token_decoder.h"
#include "nibble/core/text/tokenizers/models/token_model.h"
#include "nibble/core/text/tokenizers/models/word_borders.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

const nlohmann::json kNull;

JsonFields member_or_null(const JsonFields& from, const std::string& key) {
  return from.has(key) ? from.at(key) : JsonFields(kNull, from.place(), key);
}

// How many marks a text gets in front, where that and marking its blanks is all that is done before the model.
std::optional<size_t> marks_in_front(const JsonFields& from) {
  const auto is_pattern = [](const nlohmann::json& step, const char* text) {
    return step.at("pattern") == nlohmann::json{{"String", text}};
  };
  size_t in_front = 0;
  bool marked = false;
  for (const nlohmann::json& step : flat_steps(member_or_null(from, "normalizer").value(), "normalizers")) {
    const bool prepends = step.at("type") == "Prepend" && step.at("prepend") == kBlankMark && !marked;
    const bool marks = step.at("type") == "Replace" && is_pattern(step, " ") && step.at("content") == kBlankMark;
    if (!prepends && !marks) return std::nullopt;
    in_front += prepends;
    marked = marked || marks;
  }
  for (const nlohmann::json& step : flat_steps(member_or_null(from, "pre_tokenizer").value(), "pretokenizers")) {
    if (step.at("type") != "Split" || !is_pattern(step, " ")) return std::nullopt;  // Gemma's, which finds none
  }
  return marked ? std::optional(in_front) : std::nullopt;
}

// The end of a window of `text` from `begin` on, at most `end`: before a run of blanks, past `size` bytes.
uint32_t window_end(std::string_view text, uint32_t begin, uint32_t end, size_t size) {
  for (size_t at = text.find(' ', begin + size); at < end; at = text.find(' ', at + 1)) {
    const std::string_view before = text.substr(begin, at - begin);
    if (!before.ends_with(' ') && !before.ends_with(kBlankMark)) return static_cast<uint32_t>(at);
  }
  return end;
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
    for (const PreTokenizer& step : pre_tokenizers_) needs_origins_ = needs_origins_ || step.needs_origins;
    if (model_->cuts_at_word_borders() && !added_.any_normalized()) marks_in_front_ = marks_in_front(from);
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int32_t> ids;
    for (const TokenSpan& token : encode_all(text, add_special, false)) ids.push_back(token.id);
    return ids;
  }

  std::vector<TokenSpan> encode_with_offsets(std::string_view text, bool add_special) const override {
    return encode_all(text, add_special, true);
  }

  void encode_in_pieces(std::string_view text, const TakeTokens& take) const override { encode(text, true, take); }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      const std::string* token = find(id);
      if (token != nullptr && !(skip_special && added_.is_special(*token))) tokens.push_back(*token);
    }
    for (const TokenDecoder& step : decoders_) step(tokens);
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

  std::vector<TokenSpan> encode_all(std::string_view text, bool add_special, bool with_offsets) const {
    std::vector<TokenSpan> all;
    encode(text, with_offsets,
           [&](std::span<const TokenSpan> tokens) { all.insert(all.end(), tokens.begin(), tokens.end()); });
    return post_processor_.apply(std::move(all), add_special, text.size());
  }

  void encode(std::string_view text, bool with_offsets, const TakeTokens& take) const {
    require_utf8(text, "text");
    SplitText split(text, with_offsets || needs_origins_);
    added_.split_raw(split);
    if (marks_in_front_ && text.size() > kWindow) return cut_words(split, with_offsets, take);
    apply_normalizers(normalizers_, split);
    added_.split_normalized(split);
    cut(split, 0, with_offsets, take);
  }

  // A long text of which nothing but its blanks changes, in windows of words.
  void cut_words(const SplitText& text, bool with_offsets, const TakeTokens& take) const {
    for (const TextPiece& piece : text.pieces()) {
      for (uint32_t begin = piece.begin, end = begin; begin < piece.end; begin = end) {
        end = piece.token >= 0 ? piece.end : window_end(text.text(), begin, piece.end, kWindow);
        const TextPiece words{begin, end, piece.token};
        SplitText window(text, {&words, 1});
        apply_normalizers(std::span(normalizers_).subspan(begin == piece.begin ? 0 : *marks_in_front_), window);
        take(tokens_of(window, with_offsets));
      }
    }
  }

  // From pre-tokenizer `step` on. These look at one piece at a time, so a long text goes on in windows as soon as it
  // has pieces.
  void cut(SplitText& text, size_t step, bool with_offsets, const TakeTokens& take) const {
    const std::vector<TextPiece>& pieces = text.pieces();
    if (text.text().size() > kWindow && pieces.size() > 1) {
      for (size_t first = 0, last = 0; first < pieces.size(); first = last) {
        while (last < pieces.size() && (last == first || pieces[last].end - pieces[first].begin <= kWindow)) ++last;
        SplitText window(text, std::span(pieces).subspan(first, last - first));
        cut(window, step, with_offsets, take);
      }
    } else if (step < pre_tokenizers_.size()) {
      pre_tokenizers_[step].apply(text);
      cut(text, step + 1, with_offsets, take);
    } else {
      take(tokens_of(text, with_offsets));
    }
  }

  std::vector<TokenSpan> tokens_of(const SplitText& text, bool with_offsets) const {
    std::vector<TokenSpan> tokens;
    std::vector<ModelToken> word;
    const auto add = [&](int32_t id, size_t begin, size_t end) {
      const Origin origin = with_offsets ? text.span(begin, end) : Origin{};
      tokens.push_back({id, origin.begin, origin.end});
    };
    for (const TextPiece& piece : text.pieces()) {
      if (piece.token >= 0) {
        add(piece.token, piece.begin, piece.end);
        continue;
      }
      word.clear();
      model_->tokenize(text.text_of(piece), word);
      for (const ModelToken& token : word) add(token.id, piece.begin + token.begin, piece.begin + token.end);
    }
    return tokens;
  }

  static constexpr size_t kWindow = size_t{1} << 16;  // bytes of a text, about

  std::string file_;
  Normalizers normalizers_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<TokenModel> model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  TokenDecoders decoders_;
  bool has_decoder_;
  bool needs_origins_ = false;
  std::optional<size_t> marks_in_front_;  // see marks_in_front; null: a text is cut by the pre-tokenizers alone
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const nlohmann::json& description, const std::string& file) {
  return std::make_unique<JsonTokenizer>(JsonFields(description, file));
}

}  // namespace nibble
