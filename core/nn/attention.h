#pragma once
// Causal self-attention of one decoder layer: projections, rotary embedding, attention, output projection.

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "nibble/core/nn/head_norm.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/rotary.h"
#include "nibble/core/ops/attention.h"

namespace nibble {

class LayerSharding;

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

/// Keys and values of the tokens one layer has seen: [capacity, G * K] in the compute dtype, the first `length` rows
/// in use. Keys are stored rotated.
struct LayerCache {
  Tensor k, v;
  int64_t length = 0;
};

/// What every layer of one pass sees of the tokens.
struct LayerContext {
  Tensor positions;                           ///< [T] i32, in the document
  std::span<const ops::AttentionSpan> spans;  ///< documents; ignored when a cache is given (then one document)
  std::vector<RotaryView> rotary;             ///< one for each kind of layer
  const LayerSharding* sharding = nullptr;    ///< null: the weights are whole
};

/// Kept from forward to backward.
struct AttentionSaved {
  /// The input that the projections share: whether one of them keeps it, and giving it (back) to all of them.
  bool has_input() const { return qkv_proj.x || q_proj.x || k_proj.x || v_proj.x; }
  void set_input(const Tensor& x) { qkv_proj.x = q_proj.x = k_proj.x = v_proj.x = x; }

  LinearSaved qkv_proj, q_proj, k_proj, v_proj, output;
  HeadNormSaved q_norm, k_norm;
  Tensor q, k, v;  ///< as the attention saw them
  /// Where queries, keys and values were not clipped, u8; undefined unless AttentionConfig says to clip.
  Tensor q_inside, k_inside, v_inside;
  Tensor out;          ///< [T, H * K]
  Tensor log_sum_exp;  ///< [H, T] f32
};

class Attention {
 public:
  /// prefix: "model.layers.0."
  Attention(const std::string& prefix, const AttentionNames& names, const AttentionConfig& config,
            const Makers& makers);

  const AttentionConfig& config() const { return config_; }
  bool has_trainable() const;

  /// y [T, D] (f32 or bf16) from x [T, D] in the compute dtype. cache: keys and values are appended to it and the
  /// queries see all of it; needs room for T more rows.
  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y, AttentionSaved* saved,
               LayerCache* cache = nullptr);
  /// What forward would keep, without its last product where nothing needs that; dtype: of y.
  void keep(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step, AttentionSaved& saved);
  /// dx [T, D] f32 = input gradient unless null; dy [T, D] in the compute dtype.
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, AttentionSaved&& saved,
                Tensor* dx);

  void visit(const ParameterVisitor& visitor);
  void visit_linears(const std::function<void(Linear&)>& visitor);

 private:
  /// Where the projections are written and their gradients come from.
  struct Heads {
    Tensor q, k, v;
  };
  bool projections_have_trainable() const;
  /// What enters the output projection.
  Tensor attend(const Tensor& x, const LayerContext& context, const StepContext& step, AttentionSaved* saved,
                LayerCache* cache);
  /// The parts of a fused projection in the order of its rows.
  std::array<Tensor*, 3> fused_order(Heads& heads) const;
  void project(const Tensor& x, const StepContext& step, Heads& heads, AttentionSaved* saved);
  void project_backward(Heads& gradients, const StepContext& step, AttentionSaved& saved, Tensor* dx);
  void clip(Heads& heads, const StepContext& step, AttentionSaved* saved) const;
  void rotate(Heads& heads, const LayerContext& context, bool inverse) const;

  AttentionConfig config_;
  ops::AttentionParams params_;
  std::optional<Linear> qkv_, q_, k_, v_;
  std::optional<Linear> output_;
  std::optional<HeadNorm> q_norm_, k_norm_;
};

}  // namespace nibble
