#include "nibble/core/text/tokenizers/models/piece_cache.h"

namespace nibble {

namespace {

constexpr size_t kSlots = size_t{1} << 16;
constexpr size_t kProbes = 4;

}  // namespace

struct PieceCache::Entry {
  size_t hash;
  std::string piece;
  std::vector<ModelToken> tokens;
};

PieceCache::PieceCache() : slots_(new std::atomic<const Entry*>[kSlots]) {
  for (size_t k = 0; k < kSlots; ++k) slots_[k].store(nullptr, std::memory_order_relaxed);
}

PieceCache::~PieceCache() {
  for (size_t k = 0; k < kSlots; ++k) delete slots_[k].load(std::memory_order_relaxed);
}

bool PieceCache::find(std::string_view piece, std::vector<ModelToken>& tokens) const {
  const size_t hash = std::hash<std::string_view>()(piece);
  for (size_t probe = 0; probe < kProbes; ++probe) {
    const Entry* entry = slots_[(hash + probe) % kSlots].load(std::memory_order_acquire);
    if (entry == nullptr) return false;
    if (entry->hash != hash || entry->piece != piece) continue;
    tokens.insert(tokens.end(), entry->tokens.begin(), entry->tokens.end());
    return true;
  }
  return false;
}

void PieceCache::insert(std::string_view piece, const ModelToken* begin, const ModelToken* end) {
  if (piece.size() > kMaxPiece) return;
  const size_t hash = std::hash<std::string_view>()(piece);
  for (size_t probe = 0; probe < kProbes; ++probe) {
    std::atomic<const Entry*>& slot = slots_[(hash + probe) % kSlots];
    if (slot.load(std::memory_order_relaxed) != nullptr) continue;
    auto entry = std::make_unique<Entry>(Entry{hash, std::string(piece), {begin, end}});
    const Entry* expected = nullptr;
    if (slot.compare_exchange_strong(expected, entry.get(), std::memory_order_release, std::memory_order_relaxed))
      entry.release();
    return;
  }
}

}  // namespace nibble
