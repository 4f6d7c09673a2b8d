#pragma once
// A mixer around LinearAttention: what projects its inputs differs, all else is here.

#include <map>

#include "nibble/core/nn/mixers/linear_attention/linear_attention.h"

namespace nibble {

class LinearAttentionMixer : public OfMembers<LinearAttentionMixer, Mixer> {
 public:
  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                         std::unique_ptr<SublayerSaved>& saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// The end of the convolution's rows and the state of every head, f32.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) { use(projections_, second_, attention_, output_); }

 protected:
  /// second: of what the projection of the same number gives, where there is one (low rank: Kimi Linear).
  LinearAttentionMixer(std::vector<Linear> projections, LinearAttention attention, Linear output,
                       std::map<size_t, Linear> second = {})
      : projections_(std::move(projections)),
        second_(std::move(second)),
        attention_(std::move(attention)),
        output_(std::move(output)) {}

  const LinearAttentionConfig& sizes() const { return attention_.config(); }
  const std::vector<Linear>& projections() const { return projections_; }

 private:
  struct Saved;
  /// The inputs of the attention from the results of the projections, and the other way round for gradients.
  virtual LinearAttention::Inputs split(const std::vector<Tensor>& projected, const StepContext& step) const = 0;
  virtual std::vector<Tensor> join(const LinearAttention::Inputs& gradients, const StepContext& step) const = 0;

  Tensor mix(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved, MixerCache* cache);

  std::vector<Linear> projections_;
  std::map<size_t, Linear> second_;
  LinearAttention attention_;
  Linear output_;
};

}  // namespace nibble
