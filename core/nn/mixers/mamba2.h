#pragma once
// Mamba-2 (Dao and Gu 2024): a state space as the mixer of a layer.

#include <array>

#include "nibble/core/nn/mixers/linear_attention/linear_attention_mixer.h"

namespace nibble {

struct Mamba2Config {
  int64_t width = 0;  ///< D
  int64_t heads = 1, head_size = 0;
  int64_t groups = 1;  ///< of heads that share B and C
  int64_t state_size = 0;
  int64_t taps = 4;
  bool conv_bias = true, input_bias = false, output_bias = false;
  ops::Activation activation = ops::Activation::silu;
  ops::TimeStepLimits limits = ops::kAnyStep;
  bool norm = true;  ///< of the output, in groups; without one it is only gated
  bool gate_first = true;
  float eps = 1e-5f;
  std::array<float, 5> multipliers = {1, 1, 1, 1, 1};  ///< of gate, x, B, C and time step as projected (Falcon-H1)
};

class Mamba2 final : public LinearAttentionMixer {
 public:
  /// prefix: "model.layers.0.mamba."
  Mamba2(const std::string& prefix, const Mamba2Config& config, const Makers& makers);

 private:
  LinearAttention::Inputs split(const std::vector<Tensor>& projected, const StepContext& step) const override;
  std::vector<Tensor> join(const LinearAttention::Inputs& gradients, const StepContext& step) const override;
  /// Columns of the projection times their multipliers, in place.
  void multiply(Tensor& projected, const StepContext& step) const;

  std::vector<float> multipliers_;  ///< one for each row of the projection; empty: all are 1
};

}  // namespace nibble
