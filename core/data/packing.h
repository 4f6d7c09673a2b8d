#pragma once
// The sequences of one epoch: which pieces of which samples stand together, and in which order.

#include <cstdint>
#include <filesystem>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/data/dataset.h"
#include "nibble/core/data/large_array.h"

namespace nibble {

/// A permutation of 0..count-1 that depends on nothing but the other arguments (Fisher-Yates on Philox); scratch: where
/// it lies, see LargeArray.
LargeArray<uint32_t> keyed_permutation(uint64_t count, uint64_t seed, uint32_t purpose, uint64_t index,
                                       const std::filesystem::path& scratch = {});

/// Tokens [begin, end) of a sample: one document of a sequence.
struct Piece {
  uint32_t sample = 0;
  uint32_t begin = 0, end = 0;
  uint32_t number = 0;  ///< in the epoch's order before packing; Sample::index, so dropout does not depend on packing
};

/// The sequences of an epoch, each some documents of max_length tokens together at most.
class EpochPlan {
 public:
  explicit EpochPlan(const std::filesystem::path& scratch) : pieces_(scratch), first_(scratch, 1), order_(scratch) {}
  int64_t size() const { return ordered_ ? std::ssize(order_) : std::ssize(first_) - 1; }
  std::span<const Piece> sequence(int64_t i) const {
    NIBBLE_CHECK(i >= 0 && i < size(), "a sequence of the epoch");
    const size_t k = ordered_ ? order_[static_cast<size_t>(i)] : static_cast<size_t>(i);
    return {pieces_.data() + first_[k], pieces_.data() + first_[k + 1]};
  }
  /// A sequence of documents that are groups of `dataset`, each named by its first sample: all of its samples, in
  /// order.
  void add_groups(std::span<const Piece> groups, const Dataset& dataset);
  /// Those of the sequences that were added which the epoch has, in its order.
  void set_order(LargeArray<uint32_t> order);
  /// Gives pages of the plan's files back.
  void release() const;

 private:
  LargeArray<Piece> pieces_;
  LargeArray<uint64_t> first_;
  LargeArray<uint32_t> order_;
  bool ordered_ = false;
};

struct EpochOptions {
  int64_t max_length = 2048;
  bool pack = true;
  bool shuffle = true;
  uint64_t seed = 0;
};

/// A pure function of its arguments; what it makes and needs on the way lies in dataset.scratch().
/// - The order is a keyed permutation of (seed, epoch), or without shuffle the order of the files; weights repeat or
///   draw samples first.
/// - Samples of a group (Dataset::continues_group) are drawn, counted and placed as one; a group longer than max_length
///   is a sequence of its own.
/// - Without pack each sample is a sequence (long text several).
/// - With pack, whole samples go where they fit best, longest first (best-fit decreasing); without shuffle into the
///   current sequence while they fit, so that the order stays. Text documents follow one another and are cut at
///   max_length, so no token is wasted; a cut document goes on as a document of its own.
/// - Sequences without any token to predict are left out.
EpochPlan plan_epoch(const Dataset& dataset, const EpochOptions& options, uint64_t epoch);

}  // namespace nibble
