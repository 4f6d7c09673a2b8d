#pragma once
// An MLP and experts side by side, both of the residual stream and each with norms of its own (Gemma 4 26B-A4B).

#include "nibble/core/nn/feed_forward/experts.h"
#include "nibble/core/nn/norms/norm.h"

namespace nibble {

/// Modules below the layer's prefix.
struct MlpAndExpertsNames {
  std::string mlp_norm = "pre_feedforward_layernorm", post_mlp_norm = "post_feedforward_layernorm_1";
  std::string experts_norm = "pre_feedforward_layernorm_2", post_experts_norm = "post_feedforward_layernorm_2";
};

/// norm(mlp(norm x)) + norm(experts(norm x)); the router sees x itself.
class MlpAndExperts final : public OfMembers<MlpAndExperts, FeedForward> {
 public:
  MlpAndExperts(const std::string& prefix, const MlpAndExpertsNames& names, const NormConfig& norm,
                std::unique_ptr<Mlp> mlp, std::unique_ptr<Experts> experts, int64_t width, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  void each(const auto& use) { use(mlp_, experts_, mlp_norm_, post_mlp_norm_, experts_norm_, post_experts_norm_); }

 private:
  struct Saved;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<Experts> experts_;
  Norm mlp_norm_, post_mlp_norm_, experts_norm_, post_experts_norm_;
};

}  // namespace nibble
