#pragma once
// Gated short convolution, the mixer of most layers of LFM2: out(C * conv(B * x)), B, C and x projected.

#include "nibble/core/nn/mixers/causal_conv.h"
#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

struct ShortConvConfig {
  int64_t width = 0;  ///< D
  int64_t taps = 3;
  bool bias = false;  ///< of the convolution and both projections
};

class ShortConv final : public OfMembers<ShortConv, Mixer> {
 public:
  /// prefix: "model.layers.0.conv."
  ShortConv(const std::string& prefix, const ShortConvConfig& config, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                         std::unique_ptr<SublayerSaved>& saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// The end of what is convolved, f32.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) { use(input_, conv_, output_); }

 private:
  struct Saved;
  /// B, C and x, in the order of the projection's rows, and what follows from them.
  struct Parts {
    Tensor before, after, x;
    Tensor gated, convolved;
  };
  Parts convolve(const Tensor& projected, const LayerContext& context, const StepContext& step,
                 ops::RecurrentState* state) const;
  /// What enters the output projection.
  Tensor mix(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved, MixerCache* cache);
  Tensor gate(const Parts& parts, const StepContext& step) const;

  ShortConvConfig config_;
  Linear input_;
  CausalConv conv_;
  Linear output_;
};

}  // namespace nibble
