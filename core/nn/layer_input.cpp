#include "nibble/core/nn/layer_input.h"

#include "nibble/core/ops/residual.h"

namespace nibble {

struct LayerInput::Saved final : SavedMembers<Saved> {
  LinearSaved gate_proj, projection;
  NormSaved norm;
  Tensor gate;  // [T, P] before its activation

  void each(const auto& use) { use(gate_proj, projection, norm, gate); }
  void inputs(const auto& use) { use(gate_proj.x); }
};

LayerInput::LayerInput(const std::string& prefix, const LayerInputNames& names, const LayerInputConfig& config,
                       const Makers& makers)
    : config_(config) {
  if (!names.scale.empty()) {
    scale_ = makers.parameter(prefix + names.scale, {1});
    scale_->buffer = true;
  }
  if (config.size == 0) return;
  gate_ = makers.make_linear(prefix + names.gate, config.size, config.width, false);
  projection_ = makers.make_linear(prefix + names.projection, config.width, config.size, false);
  norm_.emplace(prefix + names.norm, config.width, config.norm, makers.parameter);
}

void LayerInput::forward(Tensor& x, const LayerContext& context, const StepContext& step,
                         std::unique_ptr<SublayerSaved>* saved) {
  if (gate_) {
    Tensor sum = addend(x, context, step, saved);
    ops::add_residual(x, sum, 1, sum);  // x may be kept as it is
    x = sum;
  } else {
    new_saved<Saved>(saved);
  }
  if (scale_) ops::scale_rows(x, scale_->value, x);
}

void LayerInput::backward(Tensor& gradient, const LayerContext& context, const StepContext& step,
                          SublayerSaved& saved) {
  if (scale_) ops::scale_rows(gradient, scale_->value, gradient);
  if (gate_) addend_backward(gradient, context, step, saved, gradient);
}

Tensor LayerInput::addend(const Tensor& x, const LayerContext& context, const StepContext& step,
                          std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  NIBBLE_CHECK(gate_ && context.state, "a layer's own input needs a pass");
  const Tensor& input = context.state->layer_inputs.at(static_cast<size_t>(config_.layer));
  const auto make = [&](int64_t columns, DType dtype) {
    return Tensor::empty(step.pool(), {x.dim(0), columns}, dtype, "layer input");
  };
  Tensor gate = make(config_.size, step.compute_dtype), product = make(config_.size, step.compute_dtype);
  gate_->forward(in_compute_dtype(x, step), gate, step, kept ? &kept->gate_proj : nullptr);
  ops::gated_forward(config_.activation, gate, input, product);
  Tensor projected = make(config_.width, DType::f32), normed = make(config_.width, DType::f32);
  projection_->forward(product, projected, step, kept ? &kept->projection : nullptr);
  norm_->forward(projected, normed, step, kept ? &kept->norm : nullptr);
  if (kept) kept->gate = gate;
  return normed;
}

void LayerInput::addend_backward(const Tensor& gradient, const LayerContext& context, const StepContext& step,
                                 SublayerSaved& of, Tensor& dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  const auto layer = static_cast<size_t>(config_.layer);
  const Tensor& input = context.state->layer_inputs.at(layer);
  Tensor dprojected = Tensor::zeros(step.pool(), gradient.shape(), DType::f32, "norm gradient");
  norm_->backward(gradient, step, std::move(saved.norm), dprojected);
  const auto like = [&] { return Tensor::empty(step.pool(), input.shape(), input.dtype(), "layer input gradient"); };
  Tensor dproduct = like(), dgate = like(), dinput = like(), none;
  projection_->backward(in_compute_dtype(dprojected, step), step, std::move(saved.projection), &dproduct, false);
  ops::gated_backward(config_.activation, dproduct, saved.gate, input, dgate, dinput, none);
  context.state->layer_input_gradients.at(layer) = dinput;
  Tensor own = Tensor::empty(step.pool(), gradient.shape(), DType::f32, "layer input gradient");
  gate_->backward(dgate, step, std::move(saved.gate_proj), &own, false);
  ops::add(own, dx);
}

}  // namespace nibble
