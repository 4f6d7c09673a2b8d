#pragma once
// A mixer with a learned augmented residual beside it (LAuReL: Menghani et al. 2024, as in Gemma 3n).

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/mixers/mixer.h"
#include "nibble/core/nn/norms/norm.h"

namespace nibble {

/// Modules below the layer's prefix.
struct LaurelNames {
  std::string left = "laurel.linear_left", right = "laurel.linear_right", norm = "laurel.post_laurel_norm";
  std::string mixer_norm = "post_attention_layernorm";
};

/// norm(mixer(x)) + x + norm'(right(left(x)))
class Laurel final : public OfMembers<Laurel, Mixer> {
 public:
  /// rank: outputs of `left`.
  Laurel(const std::string& prefix, const LaurelNames& names, std::unique_ptr<Mixer> mixer, int64_t width, int64_t rank,
         const NormConfig& norm, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// The mixer's.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) { use(mixer_, left_, right_, norm_, mixer_norm_); }

 private:
  struct Saved;
  /// y from what the mixer gave, [T, D] f32.
  void join(const Tensor& mixed, const Tensor& x, const StepContext& step, Tensor& y, Saved* saved);

  std::unique_ptr<Mixer> mixer_;
  Linear left_, right_;
  Norm norm_, mixer_norm_;
};

}  // namespace nibble
