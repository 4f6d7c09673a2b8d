#include "nibble/core/nn/streams/alt_up.h"

#include "nibble/core/ops/residual.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

namespace {

Tensor ones(int64_t count, const StepContext& step) {
  return Tensor::from<float>(step.pool(), {count}, std::vector<float>(static_cast<size_t>(count), 1.0f));
}

}  // namespace

struct AltUp::Routed {
  NormSaved norm;
  LinearSaved router, coefficients;
  Tensor logits;  // [T, N] f32 before the tanh

  void visit(const TensorVisitor& visitor) {
    norm.visit(visitor);
    router.visit(visitor);
    coefficients.visit(visitor);
    if (logits) visitor(logits);
  }
};

struct AltUp::Saved final : SavedMembers<Saved> {
  Routed predicting, correcting;
  Tensor x;                     // [N T, D]
  Tensor predicted, corrected;  // coefficients [T, N N] and [T, N]
  Tensor change;                // out - active predicted
  Tensor seen;                  // the active stream, corrected
  std::unique_ptr<SublayerSaved> layer_input;

  void each(const auto& use) { use(predicting, correcting, layer_input, x, predicted, corrected, change, seen); }
  void inputs(const auto& use) { use(x); }
};

AltUp::AltUp(const std::string& prefix, const AltUpNames& names, const AltUpConfig& config, LayerInput layer_input,
             const Makers& makers)
    : config_(config),
      layer_input_(std::move(layer_input)),
      prediction_(
          makers.make_linear(prefix + names.prediction, config.streams * config.streams, config.streams, false)),
      correction_(makers.make_linear(prefix + names.correction, config.streams, config.streams, false)),
      router_(makers.make_linear(prefix + names.router, config.streams, config.width, false)),
      norm_(prefix + names.norm, config.width, config.norm, makers.parameter),
      scale_(makers.parameter(prefix + names.scale, {config.width})) {
  for (Linear* linear : {&prediction_, &correction_, &router_}) linear->keep_exact();
}

Tensor AltUp::stream(const Tensor& streams, int64_t n) const {
  const int64_t tokens = streams.dim(0) / config_.streams;
  return streams.rows(n * tokens, (n + 1) * tokens);
}

Tensor AltUp::active(const Tensor& streams) const { return stream(streams, config_.active); }

Tensor AltUp::route(const Tensor& x, Linear& coefficients, const StepContext& step, Routed* saved) {
  const auto make = [&](int64_t columns) {
    return Tensor::empty(step.pool(), {x.dim(0), columns}, DType::f32, "stream router");
  };
  Tensor normed = make(config_.width), logits = make(config_.streams), weights = make(config_.streams);
  Tensor result = make(coefficients.out_features());
  norm_.forward(x, normed, step, saved ? &saved->norm : nullptr);
  ops::scale(normed, 1 / static_cast<float>(config_.width));
  router_.forward(in_compute_dtype(normed, step), logits, step, saved ? &saved->router : nullptr);
  ops::activation_forward(ops::Activation::tanh, logits, weights);
  coefficients.forward(in_compute_dtype(weights, step), result, step, saved ? &saved->coefficients : nullptr);
  if (saved) saved->logits = logits;
  return result;
}

void AltUp::route_backward(const Tensor& dcoefficients, Linear& coefficients, const StepContext& step, Routed& saved,
                           Tensor& dx) {
  const auto make = [&](int64_t columns) {
    return Tensor::empty(step.pool(), {dx.dim(0), columns}, DType::f32, "stream router gradient");
  };
  Tensor dweights = make(config_.streams), dnormed = make(config_.width);
  coefficients.backward(in_compute_dtype(dcoefficients, step), step, std::move(saved.coefficients), &dweights, false);
  ops::activation_backward(ops::Activation::tanh, dweights, saved.logits, dweights);
  router_.backward(in_compute_dtype(dweights, step), step, std::move(saved.router), &dnormed, false);
  ops::scale(dnormed, 1 / static_cast<float>(config_.width));
  norm_.backward(dnormed, step, std::move(saved.norm), dx);
}

Tensor AltUp::predict(const Tensor& x, const StepContext& step, std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  // What is kept of the active stream may not keep all of them.
  const Tensor seen = kept ? active(x).clone(step.pool()) : active(x);
  const Tensor coefficients = route(seen, prediction_, step, kept ? &kept->predicting : nullptr);
  Tensor predicted = x.clone(step.pool());
  ops::mix_streams_forward(x, coefficients, predicted);
  if (kept) {
    kept->x = x;
    kept->predicted = coefficients;
  }
  return predicted;
}

Tensor AltUp::predict_backward(const Tensor& dpredicted, const StepContext& step, SublayerSaved& of) {
  auto& saved = dynamic_cast<Saved&>(of);
  Tensor dx = dpredicted.clone(step.pool());
  Tensor dcoefficients = Tensor::empty(step.pool(), saved.predicted.shape(), DType::f32, "stream router gradient");
  ops::mix_streams_backward(dpredicted, saved.x, saved.predicted, dx, dcoefficients);
  Tensor own = active(dx);
  route_backward(dcoefficients, prediction_, step, saved.predicting, own);
  return dx;
}

Tensor AltUp::correct(const Tensor& predicted, const Tensor& out, const LayerContext& context, const StepContext& step,
                      std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = saved ? &dynamic_cast<Saved&>(**saved) : nullptr;
  Tensor weights = route(out, correction_, step, kept ? &kept->correcting : nullptr);
  ops::add_bias(ones(config_.streams, step), weights);
  Tensor change = Tensor::empty(step.pool(), out.shape(), DType::f32, "streams");
  ops::add_residual(out, active(predicted), -1, change);
  Tensor result = predicted.clone(step.pool());
  ops::mix_streams_forward(change, weights, result);
  Tensor seen = active(result).clone(step.pool());
  if (kept) {
    kept->corrected = weights;
    kept->change = change;
    if (scale_->trainable) kept->seen = seen.clone(step.pool());
  }
  if (config_.scaled) ops::scale_columns(seen, scale_->value, 0, seen);
  const Tensor own = layer_input_.addend(seen, context, step, kept ? &kept->layer_input : nullptr);
  for (int64_t n = 1; n < config_.streams; ++n) {
    Tensor to = stream(result, n);
    ops::add(own, to);
  }
  return result;
}

void AltUp::correct_backward(Tensor& gradient, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                             Tensor& dpredicted, Tensor& dout) {
  auto& saved = dynamic_cast<Saved&>(of);
  Tensor down = Tensor::zeros(step.pool(), saved.change.shape(), DType::f32, "stream gradient");
  for (int64_t n = 1; n < config_.streams; ++n) ops::add(stream(gradient, n), down);
  Tensor dseen = Tensor::zeros(step.pool(), down.shape(), DType::f32, "stream gradient");
  layer_input_.addend_backward(down, context, step, *saved.layer_input, dseen);
  if (config_.scaled) {
    if (scale_->trainable) {
      ops::scale_columns_backward(dseen, saved.seen, ones(config_.width, step), scale_->gradient);
    }
    ops::scale_columns(dseen, scale_->value, 0, dseen);
  }
  Tensor own = active(gradient);
  ops::add(dseen, own);

  dout = Tensor::zeros(step.pool(), down.shape(), DType::f32, "stream gradient");
  Tensor dweights = Tensor::empty(step.pool(), saved.corrected.shape(), DType::f32, "stream router gradient");
  ops::mix_streams_backward(gradient, saved.change, saved.corrected, dout, dweights);
  dpredicted = gradient;
  ops::add(dout, own, -1);
  route_backward(dweights, correction_, step, saved.correcting, dout);
}

}  // namespace nibble
