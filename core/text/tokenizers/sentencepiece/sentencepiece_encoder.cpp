#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_encoder.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <unordered_map>

#include "nibble/core/text/tokenizers/models/best_path.h"
#include "nibble/core/text/tokenizers/models/piece_cache.h"
#include "nibble/core/text/tokenizers/models/word_borders.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_normalizer.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();

// What both algorithms need of a model. The rules of a hostile model may leave broken characters behind; they are cut
// as far as they go.
class Encoder : public SentencePieceEncoder {
 public:
  explicit Encoder(const SentencePieceModel& model) : model_(model), rules_(model.normalizer.charsmap) {
    std::vector<std::pair<std::string, int32_t>> user_defined;
    for (size_t k = 0; k < model.pieces.size(); ++k) {
      const SentencePieceEntry& piece = model.pieces[k];
      const auto id = static_cast<int32_t>(k);
      if (piece.kind == PieceKind::kUnknown) unknown_ = id;
      if (piece.kind == PieceKind::kUserDefined) user_defined.emplace_back(piece.text, id);
      const bool reserved =
          piece.kind == PieceKind::kControl || piece.kind == PieceKind::kUnknown || piece.kind == PieceKind::kByte;
      (reserved ? reserved_ : pieces_).emplace(piece.text, id);
    }
    has_borders_ = std::ranges::all_of(
        pieces_, [](const auto& piece) { return next_word_border(piece.first, 0) == std::string_view::npos; });
    user_defined_ = PrefixTrie(std::move(user_defined));
    for (unsigned byte = 0; byte < 256; ++byte) bytes_[byte] = id_of(byte_token(static_cast<unsigned char>(byte)));
  }

  void encode(std::string_view text, size_t offset, bool dummy_prefix, const TakeTokens& take) const override {
    constexpr size_t kWindow = size_t{1} << 16;  // of the normalized text, up to the last border in it
    SentenceNormalizer normalizer(model_.normalizer, rules_, user_defined_,
                                  dummy_prefix && model_.normalizer.add_dummy_prefix, model_.whitespace_as_suffix,
                                  text);
    NormalizedSentence sentence;
    sentence.text.reserve(std::min(2 * kWindow, text.size() + text.size() / 2 + 3));
    sentence.origin.reserve(sentence.text.capacity());
    std::vector<TokenSpan> tokens;
    Before before;
    for (size_t window = kWindow;;) {
      const bool ended = normalizer.append(window, sentence);
      const size_t end = ended ? sentence.text.size() : has_borders_ ? last_word_border(sentence.text) : 0;
      window = end > 0 ? kWindow : 2 * window;
      append_tokens(sentence, end, offset, before, tokens);
      if (ended) return take(tokens);
      if (end == 0) continue;
      take(std::span(tokens).first(tokens.size() - 1));  // the last one may grow
      tokens.erase(tokens.begin(), tokens.end() - 1);
      sentence.text.erase(0, end);
      sentence.origin.erase(sentence.origin.begin(), sentence.origin.begin() + static_cast<ptrdiff_t>(end));
    }
  }

 protected:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Pieces = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;

  /// Gives the pieces of a window of the normalized text, in order and without gaps, some at a time: what begins at
  /// byte `at` of the window, with places from there on. `score`: of the best path up to the window, then to its end.
  using Take = std::function<void(const std::vector<ModelToken>& pieces, size_t at)>;
  virtual void cut(std::string_view window, float& score, const Take& take) const = 0;

  int32_t id_of(std::string_view text) const {
    if (const auto found = reserved_.find(text); found != reserved_.end()) return found->second;
    const auto found = pieces_.find(text);
    return found == pieces_.end() ? unknown_ : found->second;
  }
  const SentencePieceEntry& entry(int32_t id) const { return model_.pieces[static_cast<size_t>(id)]; }

  const SentencePieceModel& model_;
  Pieces pieces_;    // those that a text can be cut in
  Pieces reserved_;  // control, unknown and byte pieces
  PrefixTrie user_defined_;
  int32_t unknown_ = 0;
  bool has_borders_ = false;  // no piece reaches over a border of words

 private:
  // What a window needs of those before it.
  struct Before {
    bool unknown = false;  // the last piece
    float score = 0;
  };

  void append_tokens(const NormalizedSentence& sentence, size_t end, size_t offset, Before& before,
                     std::vector<TokenSpan>& tokens) const {
    cut(std::string_view(sentence.text).substr(0, end), before.score,
        [&](const std::vector<ModelToken>& pieces, size_t at) {
          for (const ModelToken& piece : pieces) {
            const auto from = static_cast<int64_t>(offset + sentence.origin[at + piece.begin]);
            const auto to = static_cast<int64_t>(offset + sentence.origin[at + piece.end]);
            const bool unknown = piece.id == unknown_;
            if (unknown && model_.byte_fallback) {
              for (size_t k = at + piece.begin; k < at + piece.end; ++k)
                tokens.push_back({bytes_[static_cast<unsigned char>(sentence.text[k])], from, to});
            } else if (unknown && before.unknown) {
              tokens.back().end = to;  // unknown pieces in a row are one
            } else {
              tokens.push_back({piece.id, from, to});
            }
            before.unknown = unknown;
          }
        });
  }

  CharsMap rules_;
  int32_t bytes_[256];
};

// Merges the pair of neighbours whose piece has the highest score, the leftmost of equal ones, until there is none.
class BpeEncoder final : public Encoder {
 public:
  explicit BpeEncoder(const SentencePieceModel& model) : Encoder(model) {}

 private:
  struct Symbol {
    uint32_t begin, end;  // end == begin: merged into the one before
    uint32_t previous, next;
    bool frozen;  // a user-defined piece
  };
  struct Candidate {
    float score;
    uint32_t left, right, size;
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };
  using Unmerges = std::unordered_map<std::string_view, uint32_t>;  // unused piece -> length of its left part

  // Each word by itself, where that changes nothing.
  void cut(std::string_view window, float&, const Take& take) const override {
    std::vector<ModelToken> pieces;
    for (size_t begin = 0, end = 0; begin < window.size(); begin = end) {
      end = has_borders_ ? std::min(next_word_border(window, begin), window.size()) : window.size();
      const std::string_view word = window.substr(begin, end - begin);
      pieces.clear();
      if (!cache_.find(word, pieces)) {
        merge(word, pieces);
        cache_.insert(word, pieces.data(), pieces.data() + pieces.size());
      }
      take(pieces, begin);
    }
  }

  std::vector<Symbol> symbols_of(std::string_view word) const {
    std::vector<Symbol> symbols;
    for (uint32_t at = 0; at < word.size();) {
      const size_t defined = user_defined_.empty() ? 0 : longest_prefix(user_defined_, word.substr(at));
      const auto end = static_cast<uint32_t>(at + (defined > 0 ? defined : utf8_length_within(word, at)));
      const auto k = static_cast<uint32_t>(symbols.size());
      symbols.push_back({at, end, k > 0 ? k - 1 : kNowhere, end < word.size() ? k + 1 : kNowhere, defined > 0});
      at = end;
    }
    return symbols;
  }

  void merge(std::string_view word, std::vector<ModelToken>& pieces) const {
    std::vector<Symbol> symbols = symbols_of(word);
    std::priority_queue<Candidate> queue;
    Unmerges unmerges;
    const auto consider = [&](uint32_t left, uint32_t right) {
      if (left == kNowhere || right == kNowhere || symbols[left].frozen || symbols[right].frozen) return;
      const std::string_view both = word.substr(symbols[left].begin, symbols[right].end - symbols[left].begin);
      const auto found = pieces_.find(both);
      if (found == pieces_.end()) return;
      queue.push({entry(found->second).score, left, right, static_cast<uint32_t>(both.size())});
      if (entry(found->second).kind == PieceKind::kUnused) unmerges[both] = symbols[left].end - symbols[left].begin;
    };
    for (uint32_t k = 0; k + 1 < symbols.size(); ++k) consider(k, k + 1);
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      Symbol& left = symbols[top.left];
      Symbol& right = symbols[top.right];
      if (left.begin == left.end || right.begin == right.end || right.end - left.begin != top.size) continue;
      left.end = right.end;
      left.next = right.next;
      if (right.next != kNowhere) symbols[right.next].previous = top.left;
      right.begin = right.end;
      consider(left.previous, top.left);
      consider(top.left, left.next);
    }
    for (const Symbol& symbol : symbols) {
      if (symbol.begin != symbol.end) emit(word, symbol.begin, symbol.end, unmerges, pieces);
    }
  }

  // An unused piece is taken apart into what it was merged from.
  void emit(std::string_view word, uint32_t begin, uint32_t end, const Unmerges& unmerges,
            std::vector<ModelToken>& pieces) const {
    std::vector<std::pair<uint32_t, uint32_t>> waiting{{begin, end}};
    while (!waiting.empty()) {
      const auto [from, to] = waiting.back();
      waiting.pop_back();
      const std::string_view text = word.substr(from, to - from);
      const int32_t id = id_of(text);
      const auto parts = entry(id).kind == PieceKind::kUnused ? unmerges.find(text) : unmerges.end();
      if (parts == unmerges.end()) {
        pieces.push_back({id, from, to});
        continue;
      }
      waiting.push_back({from + parts->second, to});
      waiting.push_back({from, from + parts->second});
    }
  }

  mutable PieceCache cache_;
};

// The path with the highest sum of scores, in float from left to right; of equal ones the one that was there first.
class UnigramEncoder final : public Encoder {
 public:
  explicit UnigramEncoder(const SentencePieceModel& model) : Encoder(model) {
    std::vector<std::pair<std::string, int32_t>> entries(pieces_.begin(), pieces_.end());
    trie_ = PrefixTrie(std::move(entries));
    float lowest = std::numeric_limits<float>::max();
    highest_ = std::numeric_limits<float>::min();
    for (const SentencePieceEntry& piece : model.pieces) {
      if (piece.kind != PieceKind::kNormal) continue;
      lowest = std::min(lowest, piece.score);
      highest_ = std::max(highest_, piece.score);
    }
    unknown_score_ = lowest - 10.0F;
  }

 private:
  void cut(std::string_view text, float& score, const Take& take) const override {
    const auto score_of = [&](int32_t id, size_t length) -> std::optional<float> {
      if (entry(id).kind == PieceKind::kUnused) return std::nullopt;
      if (entry(id).kind != PieceKind::kUserDefined) return entry(id).score;
      return static_cast<float>(static_cast<double>(static_cast<float>(length) * highest_) - 0.1);
    };
    take(best_path(
             text, trie_, score_of, unknown_score_, [&] { return unknown_; }, score),
         0);
  }

  PrefixTrie trie_;
  float highest_ = 0, unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<SentencePieceEncoder> make_sentencepiece_encoder(const SentencePieceModel& model) {
  if (model.algorithm == SentencePieceAlgorithm::kBpe) return std::make_unique<BpeEncoder>(model);
  if (model.algorithm == SentencePieceAlgorithm::kUnigram) return std::make_unique<UnigramEncoder>(model);
  return nullptr;
}

}  // namespace nibble
