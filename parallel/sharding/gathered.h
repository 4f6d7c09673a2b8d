#pragma once
// One sharded buffer of a block, gathered only while it is used.

#include <memory>
#include <string>
#include <vector>

#include "nibble/core/comm/communicator.h"
#include "nibble/parallel/sharding/flat_layout.h"

namespace nibble {

/// The bytes of several tensors, of which this rank keeps its shard. The tensors themselves are changed in place:
/// between gather and release they are views of the gathered buffer, else they have no bytes.
class GatheredBytes {
 public:
  /// tensors: with bytes; each rank copies only its own shard out of them. `layout` counts in elements of
  /// `element_bytes` bytes and has one entry for each tensor.
  GatheredBytes(std::vector<Tensor*> tensors, FlatLayout layout, size_t element_bytes, Communicator& ranks,
                MemoryPool& pool, std::string what);

  /// Begins to gather, unless it is gathered or under way.
  void start();
  /// Gathered when it returns.
  void acquire();
  void release();
  bool gathered() const { return full_.has_bytes(); }

  const FlatLayout& layout() const { return layout_; }
  Communicator& ranks() const { return ranks_; }
  /// This rank's shard, u8.
  const Tensor& shard() const { return shard_; }

 private:
  void bind(bool unsharded);

  std::vector<Tensor*> tensors_;
  FlatLayout layout_;
  size_t element_bytes_;
  Communicator& ranks_;
  MemoryPool& pool_;
  std::string what_;
  std::vector<size_t> bounds_;
  Tensor shard_, arriving_, full_;
  std::unique_ptr<CommRequest> request_;
};

}  // namespace nibble
