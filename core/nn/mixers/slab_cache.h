#pragma once
// Rows that a mixer keeps of every token of sequences that are being generated: keys and values, or latents.

#include <vector>

#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

/// For each kind of row [sequences * capacity, columns] in one dtype: the slab of a sequence is `capacity` rows, of
/// which those of its tokens are in use.
struct SlabCache : MixerCache {
  SlabCache(int64_t count, std::vector<int64_t> widths, DType type, MemoryPool& memory)
      : sequences(count), columns(std::move(widths)), dtype(type), pool(memory), rows(columns.size()) {}

  void reserve(int64_t length) override;
  void copy(int64_t from, int64_t to, int64_t length) override;
  /// What the spans' queries see once their tokens are in.
  std::vector<ops::AttentionSpan> spans(const LayerContext& context) const;
  /// Puts the rows of one span's queries where they belong.
  static void append(const Tensor& result, const ops::AttentionSpan& span, Tensor& slabs);

  int64_t sequences;
  std::vector<int64_t> columns;
  DType dtype;
  MemoryPool& pool;
  std::vector<Tensor> rows;
  int64_t capacity = 0;
};

}  // namespace nibble
