#pragma once
// What a layer adds behind its two sublayers: an input of its own through a gate (Gemma 3n), and a scale (Gemma 4).

#include <optional>

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/nn/sublayer.h"
#include "nibble/core/ops/activation.h"

namespace nibble {

/// Module names below the layer's prefix.
struct LayerInputNames {
  std::string gate = "per_layer_input_gate", projection = "per_layer_projection", norm = "post_per_layer_input_norm";
  std::string scale = "layer_scalar";  ///< a buffer [1]; empty = none
};

struct LayerInputConfig {
  int64_t layer = 0;  ///< whose PassState::layer_inputs is read
  int64_t width = 0;  ///< D
  int64_t size = 0;   ///< P, 0: only the scale
  ops::Activation activation = ops::Activation::gelu_tanh;
  NormConfig norm;
};

/// scale * (x + norm(projection(f(gate x) * input)))
class LayerInput final : public OfMembers<LayerInput> {
 public:
  LayerInput(const std::string& prefix, const LayerInputNames& names, const LayerInputConfig& config,
             const Makers& makers);

  /// x [T, D] f32 becomes the result. saved: becomes what backward needs; null: inference.
  void forward(Tensor& x, const LayerContext& context, const StepContext& step, std::unique_ptr<SublayerSaved>* saved);
  /// gradient [T, D] f32: of the result on entry, of x on return; leaves the input's in the pass.
  void backward(Tensor& gradient, const LayerContext& context, const StepContext& step, SublayerSaved& saved);
  /// What forward adds to x, [T, D] f32; and dx [T, D] f32 += gradient from that of it. Only where there is an input.
  Tensor addend(const Tensor& x, const LayerContext& context, const StepContext& step,
                std::unique_ptr<SublayerSaved>* saved);
  void addend_backward(const Tensor& gradient, const LayerContext& context, const StepContext& step,
                       SublayerSaved& saved, Tensor& dx);
  void each(const auto& use) { use(gate_, projection_, norm_, scale_); }

 private:
  struct Saved;
  LayerInputConfig config_;
  std::optional<Linear> gate_, projection_;
  std::optional<Norm> norm_;
  std::shared_ptr<Parameter> scale_;
};

}  // namespace nibble
