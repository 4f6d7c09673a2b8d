#pragma once
// Causal self-attention of one decoder layer: projections, rotary embedding, attention, output projection.

#include <array>
#include <optional>
#include <vector>

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/mixers/mixer.h"
#include "nibble/core/nn/norms/head_norm.h"
#include "nibble/core/nn/shared/layer_adapters.h"

namespace nibble {

/// What each element of the heads' outputs is multiplied by: the sigmoid of ...
enum class OutputGate : uint8_t {
  none,
  in_query,        ///< what the query projection gives behind each head's query (Qwen3-Next, Qwen3.5)
  own,             ///< a projection of its own (AFMoE)
  heads,           ///< a projection of its own, of one number for each head (LFM3)
  heads_softplus,  ///< the same, with the softplus instead of the sigmoid (Laguna)
};

struct AttentionConfig {
  int64_t width = 0;       ///< D
  int64_t out_width = 0;   ///< of the result, where it is another (Zamba 2); 0 = D
  int64_t heads = 1;       ///< H
  int64_t kv_heads = 1;    ///< G
  int64_t head_size = 0;   ///< K, need not be D / H
  int64_t value_size = 0;  ///< elements of a value, where they are fewer (MiMo-V2); 0 = K
  float value_scale = 1;   ///< of the values
  float scale = 1;         ///< of the scores, usually 1 / sqrt(K)
  float softcap = 0;       ///< of the scores, 0 = off
  int64_t window = 0;      ///< 0 = all positions before
  int rotary = -1;         ///< index into LayerContext::rotary, -1 = no rope
  bool qkv_bias = false;
  bool output_bias = false;
  float qkv_clip = 0;  ///< queries, keys and values are clipped to [-qkv_clip, qkv_clip] (OLMo); 0 = off
  /// Layout of a fused projection (AttentionNames::qkv): its rows are this many groups, each with its share of the
  /// query heads, then key heads, then value heads. 1: all q, all k, all v (Phi-3, GPT-2, Falcon 7B); G: Falcon 40B;
  /// H: by head (GPT-NeoX).
  int64_t qkv_groups = 1;
  bool value_before_key = false;          ///< in each group of a fused projection (CodeGen)
  std::optional<HeadNormConfig> qk_norm;  ///< of queries and keys
  bool qk_norm_after_rope = false;
  std::optional<HeadNormConfig> v_norm;   ///< of values (Gemma 4)
  bool values_are_keys = false;           ///< values are what is projected for keys, without norm and rope (Gemma 4)
  bool scaled_queries = false;            ///< by LayerContext::query_scales, after rope
  int64_t chunk = 0;                      ///< position i sees those of i / chunk alone (Llama 4); 0 = off
  bool sinks = false;                     ///< one more logit per head, whose share is dropped (gpt-oss)
  OutputGate gate = OutputGate::none;     ///< of what enters the output projection
  std::optional<NormConfig> output_norm;  ///< of what enters the output projection (BitNet)
  int64_t keys_from = -1;                 ///< the layer whose keys and values are read instead of own ones
  int64_t shared_as = -1;                 ///< the number under which later layers read this one's, -1 = none does
  std::vector<float> alibi_slopes;        ///< [H], see ops::AttentionParams; empty = off
  float alibi_rounded_scale = 0;
  std::optional<LayerAdapterConfig> adapters;  ///< of queries, keys and values (Zamba 2)
};

/// Module names below the layer's prefix, in the family's own words.
struct AttentionNames {
  std::string q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj", output = "self_attn.o_proj";
  std::string qkv;  ///< of a fused projection, which stays fused; empty = q, k and v apart
  std::string q_norm = "self_attn.q_norm", k_norm = "self_attn.k_norm", v_norm = "self_attn.v_norm";
  std::string q_adapters = "self_attn.linear_q_adapter_list", k_adapters = "self_attn.linear_k_adapter_list",
              v_adapters = "self_attn.linear_v_adapter_list";
  std::string sinks = "self_attn.sinks", gate = "self_attn.gate_proj", output_norm = "self_attn.attn_sub_norm";
};

class Attention final : public OfMembers<Attention, Mixer> {
 public:
  /// prefix: "model.layers.0."
  Attention(const std::string& prefix, const AttentionNames& names, const AttentionConfig& config,
            const Makers& makers);

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

  void each(const auto& use) {
    use(qkv_, q_.linear, k_.linear, v_.linear, gate_, output_, sinks_, q_.norm, k_.norm, v_.norm, output_norm_,
        q_.adapters, k_.adapters, v_.adapters);
  }

 private:
  /// Queries, keys or values: their projection (unless fused, or another layer's), norm, and whether rope turns them.
  struct Part {
    int64_t heads = 0;
    bool turned = false, scaled = false;
    std::optional<Linear> linear = {};
    std::optional<HeadNorm> norm = {};
    std::optional<LayerAdapters> adapters = {};
  };
  struct PartSaved;
  struct Heads {
    Tensor q, k, v, gate;
  };
  struct Saved;
  struct Cache;
  /// Spans cut at chunks.
  std::vector<ops::AttentionSpan> cut(std::span<const ops::AttentionSpan> spans) const;
  /// What enters the output projection.
  Tensor attend(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved, Cache* cache);
  /// Keys and values of this layer or of the one whose it reads, with the new ones of `heads`, and where they are seen.
  SharedKeys keys(const Heads& heads, const LayerContext& context, Cache* cache) const;
  void make_heads(const Tensor& x, const LayerContext& context, const StepContext& step, Heads& heads, Saved* saved);
  void heads_backward(Heads& gradients, const LayerContext& context, const StepContext& step, Saved& saved, Tensor* dx);
  /// Where a part is projected to: f32 where a norm comes next.
  static Tensor raw(const Part& part, const Tensor& out, const StepContext& step);
  /// Norm, clip, rope: from what raw() gave and the projection has filled, which is `out` where there is no norm.
  void shape(const Part& part, Tensor& raw, const LayerContext& context, const StepContext& step, Tensor& out,
             PartSaved* saved) const;
  /// Gradient of what was projected, f32 where there is a norm; uses up that of the part.
  Tensor shape_backward(Part& part, Tensor& gradient, const LayerContext& context, const StepContext& step,
                        PartSaved& saved) const;
  void rotate(const Part& part, Tensor& values, const LayerContext& context, bool inverse) const;
  static void project(Part& part, const Tensor& x, Tensor& raw, const StepContext& step, PartSaved* saved);
  /// The parts of a fused projection in the order of its rows.
  std::array<Tensor*, 3> fused_order(Heads& heads) const;
  void project_fused(const Tensor& x, const StepContext& step, Heads& raw, Saved* saved);
  /// Queries with their gates behind them.
  void project_gated(const Tensor& x, const StepContext& step, Heads& raw, Saved* saved);
  /// The gate and the norm between the heads and the output projection, and back to the gradient of the heads.
  Tensor finish(const Tensor& out, const Tensor& gate, const StepContext& step, Saved* saved) const;
  Tensor finish_backward(const Tensor& gradient, const StepContext& step, Saved& saved);

  bool softplus() const { return config_.gate == OutputGate::heads_softplus; }
  bool by_head() const { return config_.gate == OutputGate::heads || softplus(); }
  int64_t value_size() const { return config_.value_size > 0 ? config_.value_size : config_.head_size; }
  Tensor without_padding(const Tensor& x, int64_t rows, const StepContext& step) const;

  AttentionConfig config_;
  ops::AttentionParams params_;
  Part q_, k_, v_;
  std::optional<Linear> qkv_, gate_, output_;
  std::optional<Norm> output_norm_;
  std::shared_ptr<Parameter> sinks_;
};

}  // namespace nibble
