#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <unordered_map>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/literal_matcher.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_encoder.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_model.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

using sentencepiece::SentencePieceProcessor;

void require(const sentencepiece::util::Status& status, const std::string& place) {
  if (!status.ok()) throw InputError(place, std::string("sentencepiece: ") + status.error_message());
}

std::unique_ptr<SentencePieceProcessor> load_processor(const std::string& bytes, const std::string& place) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  try {
    require(processor->LoadFromSerializedProto(bytes), place);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // the trie inside throws
    throw InputError(place, std::string("sentencepiece: ") + error.what(), "get the file again");
  }
  return processor;
}

// A later copy of a message field is merged into the first one: this switches add_dummy_prefix of normalizer_spec off.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const std::string& place, bool prefix_after_special)
      : place_(place), model_(std::move(model)), pieces_(model_.pieces) {
    processor_ = load_processor(model_.bytes, place);
    if (static_cast<size_t>(processor_->GetPieceSize()) != pieces_.size())
      throw InputError(place, "sentencepiece counts other pieces than the file has");
    if (!prefix_after_special && model_.normalizer.add_dummy_prefix)
      bare_ = load_processor(model_.bytes += kNoDummyPrefix, place);
    model_.bytes.clear();
    encoder_ = make_sentencepiece_encoder(model_);
    std::vector<std::pair<std::string, int32_t>> controls;
    for (size_t id = 0; id < pieces_.size(); ++id) {
      ids_.emplace(pieces_[id].text, static_cast<int32_t>(id));
      if (pieces_[id].kind == PieceKind::kControl) controls.emplace_back(pieces_[id].text, static_cast<int32_t>(id));
    }
    controls_ = LiteralMatcher(std::move(controls));
    const auto role = [](int id) { return id < 0 ? std::optional<int32_t>() : std::optional<int32_t>(id); };
    set_roles({role(processor_->bos_id()),
               role(processor_->eos_id()),
               role(processor_->pad_id()),
               role(processor_->unk_id()),
               {}});
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override {
    std::vector<int32_t> ids;
    // BOS of the file, not of tokenizer_config.json: ids are those of the library.
    if (add_special && processor_->bos_id() >= 0) ids.push_back(processor_->bos_id());
    encode_in_pieces(text, [&](std::span<const TokenSpan> tokens) {
      for (const TokenSpan& token : tokens) ids.push_back(token.id);
    });
    return ids;
  }

  std::vector<TokenSpan> encode_with_offsets(std::string_view text, bool add_special) const override {
    std::vector<TokenSpan> all;
    if (add_special && processor_->bos_id() >= 0) all.push_back({processor_->bos_id(), 0, 0});
    encode_in_pieces(text,
                     [&](std::span<const TokenSpan> tokens) { all.insert(all.end(), tokens.begin(), tokens.end()); });
    return all;
  }

  void encode_in_pieces(std::string_view text, const TakeTokens& take) const override {
    require_utf8(text, "text");
    size_t start = 0;
    for (const LiteralMatch& match : controls_.find_all(text)) {
      encode_part(text.substr(start, match.begin - start), start, take);
      const TokenSpan token{match.id, static_cast<int64_t>(match.begin), static_cast<int64_t>(match.end)};
      take({&token, 1});
      start = match.end;
    }
    encode_part(text.substr(start), start, take);
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    std::vector<int> run;
    bool first = true;
    const auto flush = [&] {
      if (run.empty()) return;
      std::string part;
      require((first || !bare_ ? *processor_ : *bare_).Decode(run, &part), place_);
      text += part;
      run.clear();
      first = false;
    };
    for (const int32_t id : ids) {
      if (entry(id).kind == PieceKind::kControl && !skip_special) {
        flush();
        text += entry(id).text;
      } else {
        run.push_back(id);
      }
    }
    flush();
    return text;
  }

  std::string token(int32_t id) const override { return entry(id).text; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(std::string(token));
    return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
  }

  bool is_special(int32_t id) const override { return entry(id).kind == PieceKind::kControl; }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }

 private:
  const SentencePieceEntry& entry(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= pieces_.size())
      throw InputError(place_, "token id " + std::to_string(id) + " is outside of the vocabulary of " +
                                   std::to_string(pieces_.size()));
    return pieces_[static_cast<size_t>(id)];
  }

  void encode_part(std::string_view part, size_t start, const TakeTokens& take) const {
    if (part.empty()) return;
    const bool whole = start == 0 || !bare_;
    if (encoder_) return encoder_->encode(part, start, whole, take);
    const SentencePieceProcessor& processor = whole ? *processor_ : *bare_;
    sentencepiece::ImmutableSentencePieceText pieces;
    require(processor.Encode(part, pieces.mutable_proto()), place_);
    const auto offset = static_cast<int64_t>(start);
    std::vector<TokenSpan> tokens;
    for (const auto& piece : pieces.pieces()) {
      tokens.push_back({static_cast<int32_t>(piece.id()), offset + piece.begin(), offset + piece.end()});
    }
    take(tokens);
  }

  std::string place_;
  SentencePieceModel model_;
  const std::vector<SentencePieceEntry>& pieces_;  // of model_
  std::unordered_map<std::string, int32_t> ids_;
  LiteralMatcher controls_;
  std::unique_ptr<SentencePieceEncoder> encoder_;  // null: the library encodes
  std::unique_ptr<SentencePieceProcessor> processor_;
  std::unique_ptr<SentencePieceProcessor> bare_;  // without the blank in front; null where it is put everywhere
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(std::string bytes, const std::string& place, bool prefix_after_special) {
  return std::make_unique<SentencePieceTokenizer>(check_sentencepiece_model(std::move(bytes), place), place,
                                                  prefix_after_special);
}

}  // namespace nibble
