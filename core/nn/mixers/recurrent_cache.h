#pragma once
// The cache of mixers that keep something of a fixed size of each sequence, however long it is.

#include <vector>

#include "nibble/core/nn/mixers/mixer.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/recurrent/recurrent_state.h"

namespace nibble {

class RecurrentCache final : public MixerCache {
 public:
  /// sizes: elements of each kind of state.
  RecurrentCache(int64_t sequences, const std::vector<int64_t>& sizes, MemoryPool& pool) {
    for (const int64_t size : sizes) {
      states_.push_back(Tensor::zeros(pool, {sequences, size}, DType::f32, "recurrent state"));
    }
  }
  void reserve(int64_t) override {}
  void copy(int64_t from, int64_t to, int64_t) override {
    for (const Tensor& state : states_) {
      Tensor row = state.rows(to, to + 1);
      ops::cast(state.rows(from, from + 1), row);
    }
  }

  /// Before a pass: the states of sequences that begin become zeros.
  void begin(const LayerContext& context) {
    rows_.clear();
    for (const Continued& document : context.continued) {
      rows_.push_back(document.sequence);
      if (document.length > 0) continue;
      for (const Tensor& state : states_) {
        Tensor row = state.rows(document.sequence, document.sequence + 1);
        row.zero();
      }
    }
  }
  /// The states of kind i of the pass's documents.
  ops::RecurrentState state(size_t i) const { return {states_.at(i), rows_}; }

 private:
  std::vector<Tensor> states_;
  std::vector<int64_t> rows_;
};

}  // namespace nibble
