#pragma once
// Rows that a mixer keeps of every token of sequences that are being generated: keys and values, or latents.

#include <algorithm>
#include <vector>

#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

/// For each kind of row [sequences * capacity, columns] in one dtype: the slab of a sequence is `capacity` rows, of
/// which those of its tokens are in use. A copy reads the rows of the sequence before it that it was made of where they
/// stand (an AttentionSpan with a hole) until that one is forgotten, and has its later rows in its own slab.
class SlabCache : public MixerCache {
 public:
  /// shares: whether what reads the rows knows holes; copies are whole otherwise.
  SlabCache(int64_t count, std::vector<int64_t> widths, DType type, MemoryPool& memory, bool shares)
      : rows(widths.size()),
        columns_(std::move(widths)),
        dtype_(type),
        pool_(memory),
        shares_(shares),
        sequences_(static_cast<size_t>(count)) {}

  /// Of the first rows. Room for later ones is made by spans, which knows how many are a sequence's own.
  void reserve(int64_t length) override {
    if (capacity_ == 0) expected_ = std::max(expected_, length);
  }
  void copy(int64_t from, int64_t to, int64_t length) override;
  void forget(int64_t sequence) override;
  /// What the spans' queries see once their tokens are in, and room for these.
  std::vector<ops::AttentionSpan> spans(const LayerContext& context);
  /// Puts the rows of one span's queries where they belong.
  static void append(const Tensor& result, const ops::AttentionSpan& span, Tensor& slabs);

  std::vector<Tensor> rows;

 private:
  struct Sequence {
    int64_t length = 0;            // of its own rows
    int64_t from = 0, shared = 0;  // whose first rows are its own first as well, and how many: 0: none
  };

  void grow(int64_t length);
  void materialize(int64_t sequence);

  std::vector<int64_t> columns_;
  DType dtype_;
  MemoryPool& pool_;
  bool shares_;
  int64_t expected_ = 0, capacity_ = 0;
  std::vector<Sequence> sequences_;
};

}  // namespace nibble
