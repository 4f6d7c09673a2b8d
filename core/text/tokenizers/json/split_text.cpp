#include "nibble/core/text/tokenizers/json/split_text.h"

#include <algorithm>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr size_t kMaxText = size_t{1} << 30;

}  // namespace

void Rewriter::keep(size_t count) {
  text_ += source_.text_.substr(position_, count);
  if (source_.keep_origins_) {
    for (size_t k = position_; k < position_ + count; ++k) origins_.push_back(source_.span(k, k + 1));
  }
  position_ += count;
}

void Rewriter::replace(size_t count, std::string_view with) {
  text_ += with;
  if (source_.keep_origins_) origins_.insert(origins_.end(), with.size(), source_.span(position_, position_ + count));
  position_ += count;
}

SplitText::SplitText(std::string_view text, bool keep_origins) : text_(text), keep_origins_(keep_origins) {
  if (text.size() > kMaxText) throw InputError("text", "is longer than 1 GiB", "encode it in pieces");
  if (!text.empty()) pieces_.push_back({0, static_cast<uint32_t>(text.size())});
}

SplitText::SplitText(const SplitText& whole, std::span<const TextPiece> pieces)
    : keep_origins_(whole.keep_origins_), identity_(whole.identity_), pieces_(pieces.begin(), pieces.end()) {
  const uint32_t begin = pieces.front().begin, end = pieces.back().end;
  text_ = whole.text_.substr(begin, end - begin);
  origin_ = whole.origin_ + begin;
  if (!identity_ && keep_origins_) origins_.assign(whole.origins_.begin() + begin, whole.origins_.begin() + end);
  for (TextPiece& piece : pieces_) {
    piece.begin -= begin;
    piece.end -= begin;
  }
}

void SplitText::split(const std::function<void(std::string_view, std::vector<TextPiece>&)>& cut) {
  std::vector<TextPiece> result;
  result.reserve(pieces_.size());
  for (const TextPiece& piece : pieces_) {
    if (piece.token >= 0) {
      result.push_back(piece);
      continue;
    }
    const size_t first = result.size();
    cut(text_of(piece), result);
    size_t kept = first;
    for (size_t k = first; k < result.size(); ++k) {
      const TextPiece part = result[k];
      if (part.begin >= part.end && part.token < 0) continue;
      result[kept++] = {part.begin + piece.begin, part.end + piece.begin, part.token};
    }
    result.resize(kept);
  }
  pieces_ = std::move(result);
}

void SplitText::rewrite(const std::function<bool(std::string_view)>& leaves,
                        const std::function<void(const TextPiece&, std::string_view, Rewriter&)>& write) {
  const bool unchanged = std::all_of(pieces_.begin(), pieces_.end(), [&](const TextPiece& piece) {
    return piece.token >= 0 || leaves(text_of(piece));
  });
  if (unchanged) return;
  Rewriter out(*this);
  out.text_.reserve(text_.size() + text_.size() / 4);
  std::vector<TextPiece> result;
  result.reserve(pieces_.size());
  for (const TextPiece& piece : pieces_) {
    const auto begin = static_cast<uint32_t>(out.text_.size());
    out.position_ = piece.begin;
    if (piece.token >= 0) {
      out.keep(piece.end - piece.begin);
    } else {
      write(piece, text_of(piece), out);
    }
    if (out.text_.size() > 4 * kMaxText - 1) throw InputError("text", "grows past 4 GiB", "encode it in pieces");
    const auto end = static_cast<uint32_t>(out.text_.size());
    if (end > begin || piece.token >= 0) result.push_back({begin, end, piece.token});
  }
  owned_ = std::move(out.text_);
  text_ = owned_;
  origins_ = std::move(out.origins_);
  identity_ = false;
  pieces_ = std::move(result);
}

Origin SplitText::span(size_t begin, size_t end) const {
  if (identity_) return {origin_ + static_cast<uint32_t>(begin), origin_ + static_cast<uint32_t>(end)};
  if (begin < end) return {origins_[begin].begin, origins_[end - 1].end};
  const uint32_t at = begin < origins_.size() ? origins_[begin].begin : origins_.empty() ? 0 : origins_.back().end;
  return {at, at};
}

}  // namespace nibble
