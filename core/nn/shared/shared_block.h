#pragma once
// A block of attention and MLP that several layers have in common, in front of the mixer of each (Zamba 2).

#include <memory>

#include "nibble/core/nn/feed_forward/mlp.h"
#include "nibble/core/nn/mixers/attention.h"

namespace nibble {

/// Module names below the layer's prefix; of what is shared below `block` as well.
struct SharedBlockNames {
  std::string block = "shared_transformer.", linear = "linear", mixer_norm = "mamba_decoder.input_layernorm";
  std::string attention_norm = "input_layernorm", mlp_norm = "pre_ff_layernorm";
};

struct SharedBlockConfig {
  AttentionConfig attention;  ///< width: 2 D, out_width: D
  MlpConfig mlp;
  NormConfig norm;
};

/// mixer(norm(x + linear(mlp(norm(attention(norm([x, e]))))))), e: the embeddings (PassState). What layers share are
/// parameters alone: each has Linears of its own on them, and with those adapters of its own.
class SharedBlock final : public OfMembers<SharedBlock, Mixer> {
 public:
  /// prefix: "model.layers.1."
  SharedBlock(const std::string& prefix, const SharedBlockNames& names, const AttentionNames& attention,
              const MlpNames& mlp, const SharedBlockConfig& config, std::unique_ptr<Mixer> mixer, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                         std::unique_ptr<SublayerSaved>& saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) { use(attention_norm_, attention_, mlp_norm_, mlp_, linear_, mixer_norm_, mixer_); }

 private:
  struct Saved;
  /// What enters the mixer.
  Tensor run(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved, MixerCache* cache);

  int64_t width_;
  Norm attention_norm_;
  Attention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
  Linear linear_;
  Norm mixer_norm_;
  std::unique_ptr<Mixer> mixer_;
};

}  // namespace nibble
