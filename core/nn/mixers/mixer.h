#pragma once
// The seam between a layer and what mixes its tokens: attention, a state space, a convolution.

#include "nibble/core/nn/sublayer.h"

namespace nibble {

/// What a mixer keeps of several sequences that are being generated: a slab of keys and values for each, or a state.
class MixerCache {
 public:
  virtual ~MixerCache() = default;
  /// Makes room for `length` tokens of every sequence, where that is known before forward_cached; what is held stays.
  virtual void reserve(int64_t length) = 0;
  /// Sequence `to` becomes what `from` is, which holds `length` tokens.
  virtual void copy(int64_t from, int64_t to, int64_t length) = 0;
  /// A sequence has no tokens again.
  virtual void forget(int64_t /*sequence*/) {}
};

/// That of a mixer that is made of several.
struct PartCaches final : MixerCache {
  std::vector<std::unique_ptr<MixerCache>> parts;

  void reserve(int64_t length) override {
    for (const auto& part : parts) part->reserve(length);
  }
  void copy(int64_t from, int64_t to, int64_t length) override {
    for (const auto& part : parts) part->copy(from, to, length);
  }
  void forget(int64_t sequence) override {
    for (const auto& part : parts) part->forget(sequence);
  }
};

/// The first sublayer of a Block. Each token sees its document up to itself and nothing else.
class Mixer : public Sublayer {
 public:
  /// Without tokens, for `sequences` sequences; dtype: the compute dtype.
  virtual std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const = 0;
  /// forward for documents that go on as context.continued says, in a cache of its own make that has room for them: one
  /// that holds no token yet begins. Inference only.
  virtual void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                              MixerCache& cache) = 0;
};

}  // namespace nibble
