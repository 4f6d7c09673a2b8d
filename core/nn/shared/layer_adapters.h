#pragma once
// What a layer adds to a Linear that it shares with others (Zamba 2).

#include <vector>

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/sublayer.h"

namespace nibble {

struct LayerAdapterConfig {
  int64_t rank = 0;           ///< R
  std::vector<int64_t> uses;  ///< numbers of the layers that share, in their modules' names
  int64_t own = 0;            ///< that of this layer
};

struct LayerAdaptersSaved {
  LinearSaved down, up;
  void visit(const TensorVisitor& visitor) {
    down.visit(visitor);
    up.visit(visitor);
  }
};

/// y += up(down(x)) with the matrices of the own layer. Those of the others that share are here too, as modules of
/// Transformers are, so that adapters have the names that PEFT gives them.
class LayerAdapters final : public OfMembers<LayerAdapters> {
 public:
  /// name: "model.layers.1.shared_transformer.self_attn.linear_q_adapter_list"; then NUMBER.0 [R, in] and NUMBER.1
  /// [out, R].
  LayerAdapters(const std::string& name, const LayerAdapterConfig& config, int64_t out, int64_t in,
                const Makers& makers);

  /// y [T, out] f32 or bf16 += the result for x [T, in] in the compute dtype. saved == nullptr: inference.
  void forward(const Tensor& x, Tensor& y, const StepContext& step, LayerAdaptersSaved* saved);
  /// dx [T, in] += unless null; dy [T, out] in the compute dtype. Accumulates gradients.
  void backward(const Tensor& dy, const StepContext& step, LayerAdaptersSaved&& saved, Tensor* dx);

  void each(const auto& use) {
    for (Pair& pair : pairs_) use(pair.down, pair.up);
  }

 private:
  struct Pair {
    Linear down, up;
  };
  Pair& own() { return pairs_[own_]; }

  std::vector<Pair> pairs_;
  size_t own_ = 0;
};

}  // namespace nibble
