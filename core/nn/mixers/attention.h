#pragma once
// Causal self-attention of one decoder layer: projections, rotary embedding, attention, output projection.

#include <array>
#include <optional>
#include <vector>

#include "nibble/core/nn/head_norm.h"
#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

struct AttentionConfig {
  int64_t width = 0;      ///< D
  int64_t heads = 1;      ///< H
  int64_t kv_heads = 1;   ///< G
  int64_t head_size = 0;  ///< K, need not be D / H
  float scale = 1;        ///< of the scores, usually 1 / sqrt(K)
  float softcap = 0;      ///< of the scores, 0 = off
  int64_t window = 0;     ///< 0 = all positions before
  int rotary = -1;        ///< index into LayerContext::rotary, -1 = no rope
  bool qkv_bias = false;
  bool output_bias = false;
  float qkv_clip = 0;  ///< queries, keys and values are clipped to [-qkv_clip, qkv_clip] (OLMo); 0 = off
  /// Layout of a fused projection (AttentionNames::qkv): its rows are this many groups, each with its share of the
  /// query heads, then key heads, then value heads. 1: all q, all k, all v (Phi-3, GPT-2, Falcon 7B); G: Falcon 40B;
  /// H: by head (GPT-NeoX).
  int64_t qkv_groups = 1;
  bool value_before_key = false;          ///< in each group of a fused projection (CodeGen)
  std::optional<HeadNormConfig> qk_norm;  ///< of queries and keys, before rope
  std::vector<float> alibi_slopes;        ///< [H], see ops::AttentionParams; empty = off
  float alibi_rounded_scale = 0;
};

/// Module names below the layer's prefix, in the family's own words.
struct AttentionNames {
  std::string q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj", output = "self_attn.o_proj";
  std::string qkv;  ///< of a fused projection, which stays fused; empty = q, k and v apart
  std::string q_norm = "self_attn.q_norm", k_norm = "self_attn.k_norm";
};

class Attention final : public Mixer {
 public:
  /// prefix: "model.layers.0."
  Attention(const std::string& prefix, const AttentionNames& names, const AttentionConfig& config,
            const Makers& makers);

  bool has_trainable() const override;
  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                         std::unique_ptr<SublayerSaved>& saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// Keys and values of every token, in slabs.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void visit(const ParameterVisitor& visitor) override;
  void visit_linears(const std::function<void(Linear&)>& visitor) override;

 private:
  /// Where the projections are written and their gradients come from.
  struct Heads {
    Tensor q, k, v;
  };
  struct Saved;
  struct Cache;
  bool projections_have_trainable() const;
  /// What enters the output projection.
  Tensor attend(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved, Cache* cache);
  /// The parts of a fused projection in the order of its rows.
  std::array<Tensor*, 3> fused_order(Heads& heads) const;
  void project(const Tensor& x, const StepContext& step, Heads& heads, Saved* saved);
  void project_backward(Heads& gradients, const StepContext& step, Saved& saved, Tensor* dx);
  void clip(Heads& heads, const StepContext& step, Saved* saved) const;
  void rotate(Heads& heads, const LayerContext& context, bool inverse) const;

  AttentionConfig config_;
  ops::AttentionParams params_;
  std::optional<Linear> qkv_, q_, k_, v_;
  std::optional<Linear> output_;
  std::optional<HeadNorm> q_norm_, k_norm_;
};

}  // namespace nibble
