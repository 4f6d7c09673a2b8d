#pragma once
// Tokens of pre-tokens seen before. Words come again and again; finding one here is ten times faster than merging it.

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/tokenizers/models/token_model.h"

namespace nibble {

/// A table that only grows, up to a fixed number of entries. Safe to use from many threads: entries never change once
/// they are published, so neither side waits.
class PieceCache {
 public:
  PieceCache();
  ~PieceCache();
  PieceCache(const PieceCache&) = delete;
  PieceCache& operator=(const PieceCache&) = delete;

  /// Longer pieces are not worth keeping.
  static constexpr size_t kMaxPiece = 64;

  /// Appends the tokens of `piece` when they are known.
  bool find(std::string_view piece, std::vector<ModelToken>& tokens) const;

  /// Keeps the tokens [begin, end) of `piece`, where there is room.
  void insert(std::string_view piece, const ModelToken* begin, const ModelToken* end);

 private:
  struct Entry;
  std::unique_ptr<std::atomic<const Entry*>[]> slots_;
};

}  // namespace nibble
