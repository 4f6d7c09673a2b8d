#include "nibble/core/models/kv_cache.h"

#include <algorithm>

#include "nibble/core/ops/elementwise.h"

namespace nibble {

KvCache::KvCache(int64_t layers, int64_t row, DType dtype, MemoryPool& pool)
    : row_(row), dtype_(dtype), pool_(pool), layers_(static_cast<size_t>(layers)) {}

int64_t KvCache::length() const { return layers_.empty() ? 0 : layers_.front().length; }

void KvCache::reserve(int64_t length) {
  if (length <= capacity_) return;
  const int64_t capacity = std::max<int64_t>({length, 2 * capacity_, 64});
  const auto grow = [&](Tensor& rows, int64_t used) {
    Tensor larger = Tensor::empty(pool_, {capacity, row_}, dtype_, "key/value cache");
    if (used > 0) {
      Tensor head = larger.rows(0, used);
      ops::cast(rows.rows(0, used), head);
    }
    rows = larger;
  };
  for (LayerCache& layer : layers_) {
    grow(layer.k, layer.length);
    grow(layer.v, layer.length);
  }
  capacity_ = capacity;
}

void KvCache::truncate(int64_t length) {
  NIBBLE_CHECK(length >= 0, "length of a cache");
  for (LayerCache& layer : layers_) layer.length = std::min(layer.length, length);
}

}  // namespace nibble
