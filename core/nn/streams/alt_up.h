#pragma once
// Alternating updates (Baykal et al. 2023, as in Gemma 3n): N residual streams, of which a layer computes one; before
// it all are predicted from all, after it all are corrected by what that one has become.

#include <optional>

#include "nibble/core/nn/layer_input.h"

namespace nibble {

/// Module names below the layer's prefix.
struct AltUpNames {
  std::string prediction = "altup.prediction_coefs", correction = "altup.correction_coefs";
  std::string router = "altup.modality_router", norm = "altup.router_norm", scale = "altup.correct_output_scale";
};

struct AltUpConfig {
  int64_t streams = 1;  ///< N
  int64_t active = 0;   ///< the one that the layer computes
  int64_t width = 0;    ///< D
  bool scaled = true;   ///< the layer's own input sees the active stream times a weight
  NormConfig norm;
};

/// Streams are f32, [N T, D], one after another. m(x) = tanh(router(norm(x) / D)), [T, N].
class AltUp final : public OfMembers<AltUp> {
 public:
  /// layer_input: of the layer, without a scale; what it makes of the active stream is added to all others but the
  /// first.
  AltUp(const std::string& prefix, const AltUpNames& names, const AltUpConfig& config, LayerInput layer_input,
        const Makers& makers);

  /// The active one of them, in place.
  Tensor active(const Tensor& streams) const;
  /// Stream b = x_b + sum over a of prediction(m(active x))[b N + a] x_a. saved: becomes what backward needs; null:
  /// inference.
  Tensor predict(const Tensor& x, const StepContext& step, std::unique_ptr<SublayerSaved>* saved);
  /// The gradient of x from that of the prediction.
  Tensor predict_backward(const Tensor& dpredicted, const StepContext& step, SublayerSaved& saved);
  /// Stream b = predicted_b + (1 + correction(m(out))[b]) (out - active predicted), then the layer's own input; out [T,
  /// D] is what the layer makes of the active prediction. saved: what predict made.
  Tensor correct(const Tensor& predicted, const Tensor& out, const LayerContext& context, const StepContext& step,
                 std::unique_ptr<SublayerSaved>* saved);
  /// From the gradient of the corrected streams, which is used up: those of the prediction and of out.
  void correct_backward(Tensor& gradient, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                        Tensor& dpredicted, Tensor& dout);

  void each(const auto& use) { use(layer_input_, prediction_, correction_, router_, norm_, scale_); }

 private:
  struct Routed;
  struct Saved;
  /// coefficients(m(x)), f32
  Tensor route(const Tensor& x, Linear& coefficients, const StepContext& step, Routed* saved);
  /// dx += gradient
  void route_backward(const Tensor& dcoefficients, Linear& coefficients, const StepContext& step, Routed& saved,
                      Tensor& dx);
  Tensor stream(const Tensor& streams, int64_t n) const;

  AltUpConfig config_;
  LayerInput layer_input_;
  Linear prediction_, correction_, router_;
  Norm norm_;
  std::shared_ptr<Parameter> scale_;  // [D]
};

}  // namespace nibble
