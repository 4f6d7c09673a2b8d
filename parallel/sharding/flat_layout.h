#pragma once
// Tensors of one block side by side in one buffer, and where the shard of each rank begins.

#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

/// A piece of one tensor.
struct FlatPart {
  size_t tensor = 0;
  int64_t begin = 0, end = 0;  ///< elements of the tensor
  int64_t at = 0;              ///< where the piece begins in the buffer
};

/// Every tensor begins at a multiple of `alignment` elements. Shards begin between tensors or at multiples of `grain`
/// inside one: a gradient's squares are added in pieces of that size, and shards that hold whole pieces give the same
/// bits.
class FlatLayout {
 public:
  FlatLayout() = default;
  /// sizes: elements of each tensor
  FlatLayout(std::vector<int64_t> sizes, int ranks, int64_t alignment, int64_t grain);

  int64_t size() const { return size_; }
  int64_t offset(size_t tensor) const { return offsets_[tensor]; }
  /// [ranks + 1]: the shard of rank r is elements [bounds[r], bounds[r + 1]) of the buffer.
  std::span<const int64_t> shard_bounds() const { return shard_bounds_; }
  /// What rank r holds of the tensors, in order.
  std::vector<FlatPart> parts(int rank) const;

 private:
  std::vector<int64_t> sizes_, offsets_, shard_bounds_;
  int64_t size_ = 0;
};

}  // namespace nibble
