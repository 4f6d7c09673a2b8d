#pragma once
// Attention whose keys and values come from a small latent of each token, beside a rotated part that all heads share
// (DeepSeek V2, MiniCPM3).

#include <optional>

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/mixers/mixer.h"
#include "nibble/core/nn/norms/norm.h"

namespace nibble {

struct LatentAttentionConfig {
  int64_t width = 0;            ///< D
  int64_t heads = 1;            ///< H
  int64_t query_rank = 0;       ///< of the queries' own latent, 0 = queries are projected at once
  int64_t rank = 0;             ///< of the latent of keys and values
  int64_t plain = 0;            ///< elements of a query or key that are not rotated
  int64_t rotated = 0;          ///< those behind them that are
  int64_t value = 0;            ///< elements of a value, at most plain + rotated
  float scale = 1;              ///< of the scores
  int rotary = 0;               ///< index into LayerContext::rotary, -1 = no rope
  bool scaled_queries = false;  ///< by LayerContext::query_scales, after rope (Mistral 4)
  bool gate = false;            ///< one for each head, see head_gate.h (Ling 2.5)
  bool bias = false;            ///< of the projections from and to the stream
  NormConfig norm;              ///< of the latents
};

/// Module names below the layer's prefix.
struct LatentAttentionNames {
  std::string q = "self_attn.q_proj", q_a = "self_attn.q_a_proj", q_norm = "self_attn.q_a_layernorm",
              q_b = "self_attn.q_b_proj";
  std::string kv_a = "self_attn.kv_a_proj_with_mqa", kv_norm = "self_attn.kv_a_layernorm", kv_b = "self_attn.kv_b_proj",
              output = "self_attn.o_proj", gate = "self_attn.g_proj";

  /// The same modules below another one than self_attn.
  static LatentAttentionNames below(const std::string& module);
};

class LatentAttention final : public OfMembers<LatentAttention, Mixer> {
 public:
  /// prefix: "model.layers.0."
  LatentAttention(const std::string& prefix, const LatentAttentionNames& names, const LatentAttentionConfig& config,
                  const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// The latent and the rotated part of every token.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) { use(q_, q_a_, q_b_, kv_a_, kv_b_, gate_, output_, q_norm_, kv_norm_); }

 private:
  struct Saved;
  struct Cache;
  /// A latent [n, rank] and a rotated part [n, rotated] for each of n tokens.
  struct Latents {
    Tensor latent, turned;
  };
  int64_t head_size() const { return config_.plain + config_.rotated; }
  Tensor queries(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved);
  void queries_backward(Tensor& dq, const LayerContext& context, const StepContext& step, Saved& saved, Tensor* dx);
  Latents latents(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved);
  /// Keys and values [n, H * (plain + rotated)], zeros behind the values of each head.
  void expand(const Latents& of, const StepContext& step, Tensor& k, Tensor& v, LinearSaved* saved);
  /// The rotated parts are gradients of the latents' own projection.
  void keys_backward(const Tensor& dk, const Tensor& dv, const LayerContext& context, const StepContext& step,
                     Saved& saved, Tensor* dx);
  void rotate(Tensor& x, int64_t heads, int64_t begin, const LayerContext& context, bool inverse) const;
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const ops::AttentionSpan> spans,
                const StepContext& step, Saved* saved) const;
  /// The values of the spans' queries, with keys and values of what the cache [*, rank + rotated] holds of them.
  Tensor attend_expanded(const Tensor& q, const Tensor& held, std::vector<ops::AttentionSpan> spans,
                         const StepContext& step);
  /// The same of spans of one query, without keys and values: a query q attends to latents c as q W_k, and W_v comes
  /// after the sum (DeepSeek-AI 2024, section 2.1.2). values [T, H * value]: their rows are written.
  void attend_latents(const Tensor& q, const Tensor& held, std::span<const ops::AttentionSpan> spans,
                      const StepContext& step, Tensor& values);
  /// The values [T, H * value] of what attention gave.
  Tensor values_of(const Tensor& out, const StepContext& step) const;
  /// Times their gates, which are of x, where there are some.
  Tensor gated(const Tensor& values, const Tensor& x, const StepContext& step, Saved* saved);

  LatentAttentionConfig config_;
  ops::AttentionParams params_;
  std::optional<Linear> q_, q_a_, q_b_, kv_a_, kv_b_, gate_, output_;
  std::optional<Norm> q_norm_, kv_norm_;
};

}  // namespace nibble
