#pragma once
// Mamba (Gu and Dao 2023): a state space with a decay for every channel and element of its state, as the mixer of a
// layer.

#include <array>
#include <optional>

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/mixers/causal_conv.h"
#include "nibble/core/nn/mixers/mixer.h"
#include "nibble/core/nn/mixers/recurrent_cache.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/recurrent/linear_attention.h"

namespace nibble {

struct MambaConfig {
  int64_t width = 0;     ///< D
  int64_t channels = 0;  ///< C
  int64_t state_size = 0;
  int64_t step_rank = 0;  ///< of the projection of the time step
  int64_t taps = 4;
  bool conv_bias = true, bias = false;  ///< bias: of the projections from and to the stream
  ops::Activation activation = ops::Activation::silu;
  std::optional<NormConfig> norm;  ///< of the time step before its projection, of B and of C (Jamba, Falcon Mamba)
};

/// B, C and the time step of every channel are projected of what was convolved. PEFT does not adapt the projection of
/// the time step: Transformers reads its weight alone.
class Mamba final : public OfMembers<Mamba, Mixer> {
 public:
  /// prefix: "model.layers.0.mamba."
  Mamba(const std::string& prefix, const MambaConfig& config, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// The end of the convolution's rows and the state of every channel, f32.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) { use(input_, low_, step_, output_, conv_, step_bias_, decay_, skip_, norms_); }
  void visit_linears(const std::function<void(Linear&)>& visitor) override;

 private:
  struct Saved;
  struct Pieces;
  ops::LinearAttentionParams params() const;
  Pieces prepare(const Tensor& projected, const LayerContext& context, const StepContext& step, RecurrentCache* cache,
                 Saved* saved);
  /// [T, C] in the compute dtype.
  Tensor gated(const Tensor& out, const Tensor& gate, const StepContext& step) const;
  Tensor mix(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
             RecurrentCache* cache);

  MambaConfig config_;
  Linear input_, low_, step_, output_;
  CausalConv conv_;
  std::shared_ptr<Parameter> step_bias_, decay_, skip_;
  std::array<std::optional<Norm>, 3> norms_;  // of the time step, B, C
};

}  // namespace nibble
