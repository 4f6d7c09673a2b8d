#pragma once
// Keys and values of a document that is being generated.

#include <vector>

#include "nibble/core/nn/attention.h"

namespace nibble {

/// One LayerCache per layer; capacity grows by doubling.
class KvCache {
 public:
  /// row: G * K of the heads that are here (Decoder::make_cache knows them); dtype: the compute dtype.
  KvCache(int64_t layers, int64_t row, DType dtype, MemoryPool& pool);

  /// Tokens held.
  int64_t length() const;
  /// Makes room for `length` tokens in every layer; contents stay.
  void reserve(int64_t length);
  /// Forgets all but the first `length` tokens.
  void truncate(int64_t length);
  LayerCache& layer(size_t l) { return layers_.at(l); }

 private:
  int64_t row_;
  DType dtype_;
  MemoryPool& pool_;
  int64_t capacity_ = 0;
  std::vector<LayerCache> layers_;
};

}  // namespace nibble
