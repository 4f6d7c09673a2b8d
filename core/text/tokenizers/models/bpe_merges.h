#pragma once
// The merges of byte-pair encoding, and applying them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nibble/core/text/tokenizers/models/token_model.h"

namespace nibble {

class BpeMerges {
 public:
  /// Room for `count` merges.
  explicit BpeMerges(size_t count);

  /// The pair (left, right) becomes `merged`, in the order of `rank`. Of equal pairs the last one counts.
  void add(int32_t left, int32_t right, int32_t rank, int32_t merged);

  /// Merges `symbols` until no pair is left that can be: always the pair of lowest rank, of equal ones the leftmost.
  void apply(std::vector<ModelToken>& symbols) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  static constexpr Merge kNone{INT32_MAX, -1};
  struct Slot {
    uint64_t pair = UINT64_MAX;
    Merge merge = kNone;
  };

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15U) >> shift_); }
  Merge find(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    for (size_t k = slot_of(pair);; k = (k + 1) & (slots_.size() - 1)) {
      if (slots_[k].pair == pair) return slots_[k].merge;
      if (slots_[k].pair == UINT64_MAX) return kNone;
    }
  }

  void apply_short(std::vector<ModelToken>& symbols) const;
  void apply_long(std::vector<ModelToken>& symbols) const;

  std::vector<Slot> slots_;  // a power of two, at most half full
  int shift_ = 0;
};

}  // namespace nibble
