#pragma once
// What the layers keep of sequences that are being generated: keys and values, or states.

#include <memory>
#include <span>
#include <vector>

#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

/// One MixerCache per layer (null: it has no mixer), for several sequences of any lengths; room grows by doubling.
class KvCache {
 public:
  /// Empty. Decoder::make_cache makes the layers'.
  KvCache(std::vector<std::unique_ptr<MixerCache>> layers, int64_t sequences)
      : layers_(std::move(layers)), lengths_(static_cast<size_t>(sequences)) {}

  /// Tokens held of a sequence.
  int64_t length(int64_t sequence = 0) const { return lengths_.at(static_cast<size_t>(sequence)); }
  /// Sequence `to` becomes what `from` is.
  void copy(int64_t from, int64_t to);
  /// Begins a sequence anew.
  void forget(int64_t sequence);

  /// Where documents go on that continue `sequences`, one each (empty: the first, the second, ...), and room for them.
  std::vector<Continued> prepare(std::span<const ops::AttentionSpan> documents, std::span<const int64_t> sequences);
  /// Their tokens are in every layer.
  void advance(std::span<const ops::AttentionSpan> documents, std::span<const Continued> continued);
  /// Null for a layer without a mixer.
  MixerCache* layer(size_t l) { return layers_.at(l).get(); }

 private:
  std::vector<std::unique_ptr<MixerCache>> layers_;
  std::vector<int64_t> lengths_;
};

}  // namespace nibble
