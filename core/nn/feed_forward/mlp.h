#pragma once
// The feed-forward sublayer of most layers: down(f(gate x) * up x), or down(f(up x)) when not gated.

#include <optional>

#include "nibble/core/nn/feed_forward/feed_forward.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/nn/shared/layer_adapters.h"
#include "nibble/core/ops/activation.h"

namespace nibble {

struct MlpConfig {
  int64_t width = 0;   ///< D
  int64_t hidden = 0;  ///< F
  ops::Activation activation = ops::Activation::silu;
  bool gated = true;
  bool bias = false;
  float gate_scale = 1, output_scale = 1;      ///< multiply the gate before its activation, and the result (Falcon-H1)
  bool xielu = false;                          ///< instead of `activation`, with two learned numbers; not gated
  std::optional<NormConfig> inner_norm;        ///< of what enters `down` (BitNet)
  std::optional<float> gate_cutoff;            ///< of the gate only what ops::gaussian_topk leaves (Gemma 3n)
  std::optional<LayerAdapterConfig> adapters;  ///< of the fused projection (Zamba 2)
};

/// Module names below the layer's prefix.
struct MlpNames {
  std::string gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
  std::string gate_up;  ///< of a fused projection (Phi-3: rows of gate, then of up); empty = apart
  std::string gate_up_adapters = "feed_forward.gate_up_proj_adapter_list";
  std::string activation = "mlp.act_fn", inner_norm = "mlp.ffn_sub_norm";
};

class Mlp final : public OfMembers<Mlp, FeedForward> {
 public:
  Mlp(const std::string& prefix, const MlpNames& names, const MlpConfig& config, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                         std::unique_ptr<SublayerSaved>& saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;

  void each(const auto& use) { use(gate_up_, gate_, up_, down_, alpha_p_, alpha_n_, inner_norm_, gate_up_adapters_); }

 private:
  struct Saved;
  void project(const Tensor& x, const StepContext& step, Tensor& gate, Tensor& up, Saved* saved);
  void project_unscaled(const Tensor& x, const StepContext& step, Tensor& gate, Tensor& up, Saved* saved);
  void project_backward(const Tensor& dgate, const Tensor& dup, const StepContext& step, Saved& saved, Tensor* dx);
  /// What of the projected gate enters its activation.
  Tensor sparse(const Tensor& gate, const StepContext& step) const;
  /// f(gate) * up or f(up)
  Tensor activate(const Tensor& gate, const Tensor& up, const StepContext& step) const;
  /// The norm of what activate() gives, if there is one.
  Tensor inner_normed(const Tensor& product, const StepContext& step, NormSaved* saved) const;

  MlpConfig config_;
  std::optional<Linear> gate_up_, gate_, up_, down_;
  std::shared_ptr<Parameter> alpha_p_, alpha_n_;  // of xIELU
  std::optional<Norm> inner_norm_;
  std::optional<LayerAdapters> gate_up_adapters_;
};

}  // namespace nibble
