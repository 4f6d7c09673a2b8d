#include <algorithm>

#include "nibble/core/text/tokenizers/models/bpe_merges.h"
#include "nibble/core/text/tokenizers/models/piece_cache.h"
#include "nibble/core/text/tokenizers/models/token_model.h"
#include "nibble/core/text/tokenizers/models/word_borders.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

struct BpeOptions {
  std::optional<int32_t> unknown;
  std::string continuing_prefix, word_suffix;
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

class Bpe final : public TokenModel {
 public:
  Bpe(Vocabulary vocabulary, BpeMerges merges, BpeOptions options)
      : TokenModel(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
    for (unsigned byte = 0; byte < 256; ++byte)
      byte_ids_[byte] = this->vocabulary().id_of(byte_token(static_cast<unsigned char>(byte)));
    for (char32_t c = 0; c < kDirect; ++c) {
      std::string character;
      append_utf8(character, c);
      direct_ids_[c] = this->vocabulary().id_of(character).value_or(-1);
    }
    cuts_before_blanks_ = may_cut_before_blanks();
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& tokens) const override {
    if (options_.ignore_merges) {
      if (const std::optional<int32_t> id = vocabulary().id_of(piece)) {
        tokens.push_back({*id, 0, static_cast<uint32_t>(piece.size())});
        return;
      }
    }
    if (!cuts_before_blanks_ || piece.size() <= kBlankMark.size()) return tokenize_word(piece, tokens);
    for (size_t begin = 0, end = 0; begin < piece.size(); begin = end) {
      end = std::min(next_word_border(piece, begin), piece.size());
      tokenize_part(piece, begin, end, tokens);
    }
  }

  bool cuts_at_word_borders() const override { return cuts_before_blanks_ && !options_.ignore_merges; }

 private:
  static constexpr char32_t kDirect = 0x180;  // covers the alphabet of byte-level BPE

  // A text that is not cut into words costs n log n merges and is no use to the cache. Where no token has a blank
  // behind another character, no merge reaches over such a place, so cutting there changes nothing.
  bool may_cut_before_blanks() const {
    if (!options_.continuing_prefix.empty() || !options_.word_suffix.empty() || !vocabulary().id_of(kBlankMark))
      return false;
    for (int32_t id = 0; id < vocabulary().end(); ++id) {
      const std::string* token = vocabulary().token(id);
      if (token != nullptr && next_word_border(*token, 0) != std::string_view::npos) return false;
    }
    return true;
  }

  void tokenize_part(std::string_view piece, size_t begin, size_t end, std::vector<ModelToken>& tokens) const {
    const size_t first = tokens.size();
    tokenize_word(piece.substr(begin, end - begin), tokens);
    for (size_t k = first; k < tokens.size(); ++k) {
      tokens[k].begin += static_cast<uint32_t>(begin);
      tokens[k].end += static_cast<uint32_t>(begin);
    }
  }

  void tokenize_word(std::string_view word, std::vector<ModelToken>& tokens) const {
    const bool keep = word.size() <= PieceCache::kMaxPiece;
    if (keep && cache_.find(word, tokens)) return;
    std::vector<ModelToken> symbols;
    symbols.reserve(word.size());
    add_symbols(word, symbols);
    merges_.apply(symbols);
    if (keep) cache_.insert(word, symbols.data(), symbols.data() + symbols.size());
    tokens.insert(tokens.end(), symbols.begin(), symbols.end());
  }

  std::optional<int32_t> id_of_character(std::string_view word, size_t begin, size_t end) const {
    const bool first = begin == 0, last = end == word.size();
    if ((first || options_.continuing_prefix.empty()) && (!last || options_.word_suffix.empty())) {
      const char32_t c = utf8_at(word, begin);
      if (c < kDirect) return direct_ids_[c] < 0 ? std::nullopt : std::optional<int32_t>(direct_ids_[c]);
      return vocabulary().id_of(word.substr(begin, end - begin));
    }
    return vocabulary().id_of(spelled(word, begin, end));
  }

  std::string spelled(std::string_view word, size_t begin, size_t end) const {
    std::string text = begin == 0 ? std::string() : options_.continuing_prefix;
    text += word.substr(begin, end - begin);
    return end == word.size() ? text + options_.word_suffix : text;
  }

  bool add_bytes(std::string_view word, size_t begin, size_t end, std::vector<ModelToken>& symbols) const {
    const size_t first = symbols.size();
    for (const char byte : spelled(word, begin, end)) {
      const std::optional<int32_t> id = byte_ids_[static_cast<unsigned char>(byte)];
      if (!id) {
        symbols.resize(first);
        return false;
      }
      symbols.push_back({*id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
    }
    return true;
  }

  // One symbol a character; what the vocabulary lacks becomes bytes or the unknown token, or is dropped.
  void add_symbols(std::string_view word, std::vector<ModelToken>& symbols) const {
    std::optional<ModelToken> unknown;  // not added yet: the next one may be fused with it
    const auto flush = [&] {
      if (unknown) symbols.push_back(*unknown);
      unknown.reset();
    };
    for (size_t begin = 0; begin < word.size();) {
      const size_t end = begin + utf8_length(word[begin]);
      if (const std::optional<int32_t> id = id_of_character(word, begin, end)) {
        flush();
        symbols.push_back({*id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      } else if ((!options_.byte_fallback || !add_bytes(word, begin, end, symbols)) && options_.unknown) {
        if (!options_.fuse_unknown) flush();
        if (!unknown) unknown = ModelToken{*options_.unknown, static_cast<uint32_t>(begin), 0};
        unknown->end = static_cast<uint32_t>(end);
      }
      begin = end;
    }
    flush();
  }

  BpeMerges merges_;
  BpeOptions options_;
  std::optional<int32_t> byte_ids_[256];
  int32_t direct_ids_[kDirect];
  bool cuts_before_blanks_ = false;
  mutable PieceCache cache_;
};

// A merge is "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const JsonFields& merges, size_t k) {
  const nlohmann::json& entry = merges.value()[k];
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  if (entry.is_string()) {
    const auto& text = entry.get_ref<const std::string&>();
    const size_t blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos)
      return {text.substr(0, blank), text.substr(blank + 1)};
  }
  merges.item(k).fail("is not a pair of tokens");
}

BpeMerges read_merges(const JsonFields& merges, const Vocabulary& vocabulary, const std::string& continuing_prefix) {
  BpeMerges table(merges.size());
  for (size_t k = 0; k < merges.size(); ++k) {
    const auto [left, right] = read_merge(merges, k);
    if (right.size() < continuing_prefix.size()) merges.item(k).fail("lacks the continuing_subword_prefix");
    const std::optional<int32_t> a = vocabulary.id_of(left), b = vocabulary.id_of(right);
    const std::optional<int32_t> both = vocabulary.id_of(left + right.substr(continuing_prefix.size()));
    if (!a || !b || !both) merges.item(k).fail("makes a token that is not in the vocabulary");
    table.add(*a, *b, static_cast<int32_t>(k), *both);
  }
  return table;
}

}  // namespace

std::unique_ptr<TokenModel> read_bpe_model(const JsonFields& from) {
  if (from.has("dropout") && from.at("dropout").value().is_number() && from.at("dropout").value().get<double>() != 0)
    from.fail("drops merges at random (dropout), which only training a tokenizer could mean");
  Vocabulary vocabulary = read_vocabulary(from.at("vocab"));
  BpeOptions options;
  options.continuing_prefix = from.string_or("continuing_subword_prefix", "");
  options.word_suffix = from.string_or("end_of_word_suffix", "");
  options.fuse_unknown = from.boolean_or("fuse_unk", false);
  options.byte_fallback = from.boolean_or("byte_fallback", false);
  options.ignore_merges = from.boolean_or("ignore_merges", false);
  if (from.has("unk_token")) {
    options.unknown = vocabulary.id_of(from.string("unk_token"));
    if (!options.unknown) from.at("unk_token").fail("is not in the vocabulary");
  }
  BpeMerges merges = read_merges(from.at("merges"), vocabulary, options.continuing_prefix);
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(options));
}

}  // namespace nibble
