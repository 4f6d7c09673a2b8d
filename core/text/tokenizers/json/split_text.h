#pragma once
// A text on its way to tokens: its bytes as rewritten so far, cut into pieces, with the way back to the original bytes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Bytes [begin, end) of the original text that a byte was made from.
struct Origin {
  uint32_t begin = 0, end = 0;
};

/// A part [begin, end) of the text; with token >= 0 it is that token already.
struct TextPiece {
  uint32_t begin = 0, end = 0;
  int32_t token = -1;
};

class SplitText;

/// Writes the next form of a text: source bytes are consumed from left to right.
class Rewriter {
 public:
  /// Copies the next `count` bytes.
  void keep(size_t count);
  /// Writes `with` in place of the next `count` bytes; count 0 inserts.
  void replace(size_t count, std::string_view with);

 private:
  friend class SplitText;
  explicit Rewriter(const SplitText& source) : source_(source) {}

  const SplitText& source_;
  size_t position_ = 0;
  std::string text_;
  std::vector<Origin> origins_;
};

/// The text, its pieces in order (none is empty), and the origins of its bytes.
class SplitText {
 public:
  /// The whole text as one piece. The text must live as long as this. With keep_origins false span() is not available
  /// after a rewrite. Throws InputError for more than 1 GiB.
  SplitText(std::string_view text, bool keep_origins);

  /// Some pieces of `whole`, which must live as long as this; spans are still those in the original text.
  SplitText(const SplitText& whole, std::span<const TextPiece> pieces);

  std::string_view text() const { return text_; }
  std::string_view text_of(const TextPiece& piece) const { return text_.substr(piece.begin, piece.end - piece.begin); }
  const std::vector<TextPiece>& pieces() const { return pieces_; }

  /// Replaces each piece that is no token by those that `cut` appends for it; ranges count from the start of the
  /// piece, what lies between them is dropped.
  void split(const std::function<void(std::string_view piece, std::vector<TextPiece>& parts)>& cut);

  /// Rewrites each piece that is no token. Nothing is copied when `leaves` says for all of them that they stay.
  void rewrite(const std::function<bool(std::string_view piece)>& leaves,
               const std::function<void(const TextPiece& piece, std::string_view text, Rewriter& out)>& write);

  /// The original bytes of [begin, end) of text().
  Origin span(size_t begin, size_t end) const;

 private:
  friend class Rewriter;

  std::string_view text_;
  std::string owned_;
  bool keep_origins_;
  bool identity_ = true;  // text_ is the original, from origin_ on
  uint32_t origin_ = 0;
  std::vector<Origin> origins_;
  std::vector<TextPiece> pieces_;
};

}  // namespace nibble
