#pragma once
// What gated delta nets and Mamba-2 have in common, between the projections of a layer: convolution, decay, attention
// without softmax, gated norm.

#include <optional>

#include "nibble/core/nn/mixers/causal_conv.h"
#include "nibble/core/nn/mixers/recurrent_cache.h"
#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/recurrent/gated_norm.h"
#include "nibble/core/ops/recurrent/linear_attention.h"
#include "nibble/core/ops/recurrent/time_step.h"

namespace nibble {

struct LinearAttentionConfig {
  ops::LinearAttentionParams params;
  int64_t taps = 4;  ///< of the convolution
  bool conv_bias = false;
  ops::Activation activation = ops::Activation::silu;  ///< of what was convolved
  bool value_first = false;                            ///< columns of the convolution: v, k, q, else q, k, v
  bool skip = false;                                   ///< values go around the state too, times D
  ops::TimeStepLimits limits = ops::kAnyStep;
  std::optional<ops::GatedNormParams> norm;  ///< of the output; nothing: it is only gated
  bool one_norm_weight = false;              ///< for all groups under the norm
  float beta_scale = 1;                      ///< of beta, after its sigmoid (OLMo Hybrid: 2)
  Shape decay_shape;                         ///< of the decay's parameter, where it is not [H] (Kimi Linear)

  int64_t keys() const { return params.key_heads * params.key_size; }  ///< columns of q, and of k
  int64_t values() const { return params.heads * params.value_size; }  ///< columns of v, gate and output
  int64_t decays() const { return params.channel_decay ? params.heads * params.key_size : params.heads; }
};

/// Names of what is not in Linears, below the mixer's prefix. With conv_parts q, k and v have convolutions of their
/// own.
struct LinearAttentionNames {
  std::vector<std::string> conv_parts = {};
  std::string conv = "conv1d", decay = "A_log", step = "dt_bias", skip = "D", norm = "norm";
};

class LinearAttention {
 public:
  /// What the projections give, in the compute dtype, or the gradients of it.
  struct Inputs {
    Tensor mixed;  ///< [T, 2 keys + values], goes through the convolution
    Tensor gate;   ///< [T, values]
    Tensor step;   ///< [T, H], or [T, H K] with decays by channel
    Tensor beta;   ///< [T, H], with the delta rule; without it the time step takes its place
  };
  struct Saved {
    Inputs in;
    Tensor out;  ///< [T, values] f32, of the attention

    void visit(const TensorVisitor& visitor);
  };

  LinearAttention(const std::string& prefix, const LinearAttentionNames& names, const LinearAttentionConfig& config,
                  const ParameterMaker& make);

  const LinearAttentionConfig& config() const { return config_; }
  bool has_trainable() const;
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, MemoryPool& pool) const;
  /// [T, values] in the compute dtype. saved == nullptr: inference; with a cache (of make_cache) sequences go on.
  Tensor forward(const Inputs& in, const LayerContext& context, const StepContext& step, Saved* saved,
                 MixerCache* cache) const;
  /// What forward gave, from what it has kept.
  Tensor output(const Saved& saved, const StepContext& step) const;
  /// Gradients of the inputs from dy [T, values] in the compute dtype; accumulates the parameters'.
  Inputs backward(const Tensor& dy, const LayerContext& context, const StepContext& step, const Saved& saved);
  void visit(const ParameterVisitor& visitor);

 private:
  struct Pieces;
  /// Columns of the i-th convolution of what is convolved.
  int64_t conv_width(size_t i) const;
  void convolve(const Tensor& x, const LayerContext& context, const StepContext& step, RecurrentCache* cache,
                Tensor& y) const;
  void convolve_backward(const Tensor& dy, const Tensor& x, const LayerContext& context, const StepContext& step,
                         Tensor& dx);
  Pieces prepare(const Inputs& in, const LayerContext& context, const StepContext& step, RecurrentCache* cache) const;
  void normalize(Tensor& rows, Tensor& inverse, const StepContext& step) const;
  Tensor unit_weight(const StepContext& step) const;
  Tensor finish(const Tensor& out, const Tensor& gate, const StepContext& step) const;
  void finish_backward(const Tensor& dy, const Saved& saved, const StepContext& step, Tensor& dout, Tensor& dgate);
  Tensor skip() const { return skip_ ? skip_->value : Tensor(); }

  LinearAttentionConfig config_;
  std::vector<CausalConv> convs_;  ///< of all columns, or of those of q, k and v
  std::shared_ptr<Parameter> decay_, step_, skip_, norm_;
};

}  // namespace nibble
