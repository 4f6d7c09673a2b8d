#pragma once
// One decoder layer, driven by data: the unit of loading, gathering, recomputing and placing.

#include <functional>

#include "nibble/core/nn/attention.h"
#include "nibble/core/nn/mlp.h"
#include "nibble/core/nn/norm.h"

namespace nibble {

/// Module names below the layer's prefix; an empty name means the layer has no such norm.
struct BlockNames {
  AttentionNames attention;
  MlpNames mlp;
  std::string attention_norm = "input_layernorm";     ///< of the attention's input
  std::string post_attention_norm;                    ///< of the attention's output (Gemma 2)
  std::string mlp_norm = "post_attention_layernorm";  ///< of the MLP's input
  std::string post_mlp_norm;                          ///< of the MLP's output (Gemma 2)
};

/// Where attention_norm and mlp_norm stand; half is attention or MLP.
enum class NormPlace : uint8_t {
  input,   ///< x + half(norm x)
  sum,     ///< norm(x + half(x)) (OPT 350M)
  stream,  ///< n + half(n), n = norm x (BLOOM with apply_residual_connection_post_layernorm)
};

struct BlockConfig {
  AttentionConfig attention;
  MlpConfig mlp;
  NormConfig norm;
  NormPlace norm_place = NormPlace::input;
  bool parallel_residual = false;  ///< x + attention(norm x) + mlp(norm' x); without mlp_norm both share one norm
  float residual_scale = 1;        ///< multiplies what attention and MLP add (Granite)
};

/// What the backward pass of one layer needs. What a half computes on is computed again from the norm's input, which is
/// kept anyway: the same bits, two passes over [T, D] for 4 bytes an element less.
struct BlockSaved {
  NormSaved attention_norm, post_attention_norm, mlp_norm, post_mlp_norm;
  AttentionSaved attention;
  MlpSaved mlp;
  bool attention_input_left_out = false, mlp_input_left_out = false;

  /// Every tensor there is, in a fixed order.
  void visit(const std::function<void(Tensor&)>& visitor);
};

class Block {
 public:
  /// prefix: "model.layers.0."
  Block(const std::string& prefix, const BlockNames& names, const BlockConfig& config, const Makers& makers);

  bool has_trainable() const;

  /// The residual stream after this layer, [T, D] f32, from x [T, D] f32. saved == nullptr: inference (or the input is
  /// kept and recompute follows). With a cache the tokens continue the cached document.
  Tensor forward(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                 LayerCache* cache = nullptr);
  /// What forward would keep, the same bits. The products whose results only the layer above needs are left out: the
  /// MLP's last one, a quarter of a Llama layer's operations, and the attention's too where both see the same stream.
  BlockSaved recompute(const Tensor& x, const LayerContext& context, const StepContext& step);

  /// gradient [T, D] f32: of the output on entry, of the input on return. Accumulates the gradients of everything
  /// trainable inside. input_gradient = false: nothing below needs the input's gradient; `gradient` is then left
  /// undefined in value and the work for it is not done.
  void backward(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                bool input_gradient);

  void visit(const ParameterVisitor& visitor);
  void visit_linears(const std::function<void(Linear&)>& visitor);

 private:
  // Takes the norms' outputs out of what is kept.
  void leave_inputs_out(BlockSaved& saved) const;
  // forward, or recompute where the output is not wanted: undefined then.
  Tensor run(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
             LayerCache* cache, bool output_wanted);
  // The two other places of the norms.
  Tensor run_around(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                    LayerCache* cache, bool output_wanted);
  void backward_around(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                       bool input_gradient);

  BlockConfig config_;
  std::optional<Norm> attention_norm_;
  Attention attention_;
  std::optional<Norm> post_attention_norm_, mlp_norm_;
  Mlp mlp_;
  std::optional<Norm> post_mlp_norm_;
};

}  // namespace nibble
