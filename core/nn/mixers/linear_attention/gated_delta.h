#pragma once
// Gated delta net (Yang et al. 2024), the mixer of most layers of Qwen3-Next and Qwen3.5; with decays by channel it is
// Kimi delta attention (Kimi Team 2025).

#include "nibble/core/nn/mixers/linear_attention/linear_attention_mixer.h"

namespace nibble {

struct GatedDeltaConfig {
  int64_t width = 0;      ///< D
  int64_t key_heads = 1;  ///< each serves consecutive value heads
  int64_t heads = 1;      ///< of values
  int64_t key_size = 0, value_size = 0;
  int64_t taps = 4;
  float eps = 1e-6f;
  ops::Activation activation = ops::Activation::silu;
  /// One projection for queries, keys, values and gates, and one for beta and decay, by key head (Qwen3-Next); else one
  /// for queries, keys and values and three more (Qwen3.5).
  bool fused = false;
  /// A projection and a convolution for queries, keys and values each (OLMo Hybrid, Kimi Linear).
  bool apart = false;
  float beta_scale = 1;  ///< see LinearAttentionConfig, as the next one
  Shape decay_shape;
  bool channel_decay = false;  ///< see ops::LinearAttentionParams; as many heads of keys as of values
  float least_decay = 0;       ///< see ops::TimeStepLimits
  bool sigmoid_gate = false;   ///< see ops::GatedNormParams
};

/// Of projections apart, below the mixer's prefix. Those of decay and gate may be products of two, whose first is here.
struct GatedDeltaNames {
  std::string q = "q_proj", k = "k_proj", v = "v_proj", gate = "g_proj", beta = "b_proj", decay = "a_proj";
  std::string first_gate, first_decay;  ///< empty = one; they give as many columns as a head has elements
  std::string output = "out_proj";
  LinearAttentionNames attention;
};

class GatedDelta final : public LinearAttentionMixer {
 public:
  /// prefix: "model.layers.0.linear_attn."
  GatedDelta(const std::string& prefix, const GatedDeltaNames& names, const GatedDeltaConfig& config,
             const Makers& makers);

 private:
  LinearAttention::Inputs split(const std::vector<Tensor>& projected, const StepContext& step) const override;
  std::vector<Tensor> join(const LinearAttention::Inputs& gradients, const StepContext& step) const override;

  GatedDeltaConfig config_;
};

}  // namespace nibble
