#include "nibble/core/nn/feed_forward/mlp.h"

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

// The product that enters `down` is computed again from gate and up.
struct Mlp::Saved final : SavedMembers<Saved> {
  LinearSaved gate_up_proj, gate_proj, up_proj, down_proj;
  LayerAdaptersSaved gate_up_adapters;
  Tensor gate, up;  // [T, F]; gate is undefined when not gated

  void each(const auto& use) { use(gate_up_proj, gate_proj, up_proj, down_proj, gate_up_adapters, gate, up); }
  void inputs(const auto& use) { use(gate_up_proj.x, gate_proj.x, up_proj.x, gate_up_adapters.down.x); }
};

Mlp::Mlp(const std::string& prefix, const MlpNames& names, const MlpConfig& config, const Makers& makers)
    : config_(config) {
  const int64_t width = config.width, hidden = config.hidden;
  if (!names.gate_up.empty()) {
    NIBBLE_CHECK(config.gated, "a fused projection of gate and up needs a gate");
    gate_up_ = makers.make_linear(prefix + names.gate_up, 2 * hidden, width, config.bias);
    if (config.adapters) {
      gate_up_adapters_.emplace(prefix + names.gate_up_adapters, *config.adapters, 2 * hidden, width, makers);
    }
  } else {
    if (config.gated) gate_ = makers.make_linear(prefix + names.gate, hidden, width, config.bias);
    up_ = makers.make_linear(prefix + names.up, hidden, width, config.bias);
  }
  down_ = makers.make_linear(prefix + names.down, width, hidden, config.bias);
  NIBBLE_CHECK(!config.gate_cutoff || config.gated, "what is cut off is a gate");
  if (config.xielu) {
    NIBBLE_CHECK(!config.gated, "xIELU is of plain MLPs");
    alpha_p_ = makers.parameter(prefix + names.activation + ".alpha_p", {1});
    alpha_n_ = makers.parameter(prefix + names.activation + ".alpha_n", {1});
  }
  if (config.inner_norm) inner_norm_.emplace(prefix + names.inner_norm, hidden, *config.inner_norm, makers.parameter);
}

void Mlp::project(const Tensor& x, const StepContext& step, Tensor& gate, Tensor& up, Saved* saved) {
  project_unscaled(x, step, gate, up, saved);
  if (gate && config_.gate_scale != 1) ops::scale(gate, config_.gate_scale);
}

void Mlp::project_unscaled(const Tensor& x, const StepContext& step, Tensor& gate, Tensor& up, Saved* saved) {
  const auto make = [&](int64_t columns) {
    return Tensor::empty(step.pool(), {x.dim(0), columns}, step.compute_dtype, "MLP activation");
  };
  up = make(config_.hidden);
  if (config_.gated) gate = make(config_.hidden);
  if (gate_up_) {
    Tensor both = make(2 * config_.hidden);
    gate_up_->forward(x, both, step, saved ? &saved->gate_up_proj : nullptr);
    if (gate_up_adapters_) gate_up_adapters_->forward(x, both, step, saved ? &saved->gate_up_adapters : nullptr);
    ops::copy_columns_out(both, 0, gate);
    ops::copy_columns_out(both, config_.hidden, up);
    return;
  }
  if (gate_) gate_->forward(x, gate, step, saved ? &saved->gate_proj : nullptr);
  up_->forward(x, up, step, saved ? &saved->up_proj : nullptr);
}

void Mlp::project_backward(const Tensor& dgate, const Tensor& dup, const StepContext& step, Saved& saved, Tensor* dx) {
  if (gate_up_) {
    Tensor both = Tensor::empty(step.pool(), {dup.dim(0), 2 * config_.hidden}, dup.dtype(), "MLP gradient");
    ops::copy_columns_in(dgate, 0, both);
    ops::copy_columns_in(dup, config_.hidden, both);
    gate_up_->backward(both, step, std::move(saved.gate_up_proj), dx, false);
    if (gate_up_adapters_) gate_up_adapters_->backward(both, step, std::move(saved.gate_up_adapters), dx);
    return;
  }
  if (gate_) gate_->backward(dgate, step, std::move(saved.gate_proj), dx, false);
  up_->backward(dup, step, std::move(saved.up_proj), dx, gate_.has_value());
}

Tensor Mlp::sparse(const Tensor& gate, const StepContext& step) const {
  if (!config_.gate_cutoff) return gate;
  Tensor left = Tensor::empty(step.pool(), gate.shape(), gate.dtype(), "MLP activation");
  ops::gaussian_topk_forward(gate, *config_.gate_cutoff, left);
  return left;
}

Tensor Mlp::activate(const Tensor& gate, const Tensor& up, const StepContext& step) const {
  Tensor product = Tensor::empty(step.pool(), up.shape(), up.dtype(), "MLP activation");
  if (config_.gated) {
    ops::gated_forward(config_.activation, sparse(gate, step), up, product);
  } else if (config_.xielu) {
    ops::xielu_forward(up, alpha_p_->value, alpha_n_->value, product);
  } else {
    ops::activation_forward(config_.activation, up, product);
  }
  return product;
}

Tensor Mlp::inner_normed(const Tensor& product, const StepContext& step, NormSaved* saved) const {
  if (!inner_norm_) return product;
  Tensor normed = Tensor::empty(step.pool(), product.shape(), product.dtype(), "norm");
  inner_norm_->forward(in_dtype(product, DType::f32, step), normed, step, saved);
  return normed;
}

void Mlp::forward(const Tensor& x, const LayerContext&, const StepContext& step, Tensor& y,
                  std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  Tensor gate, up;
  project(x, step, gate, up, kept);
  down_->forward(inner_normed(activate(gate, up, step), step, nullptr), y, step, kept ? &kept->down_proj : nullptr);
  if (config_.output_scale != 1) ops::scale(y, config_.output_scale);
  if (kept) {
    kept->gate = gate;
    kept->up = up;
    kept->down_proj.x = {};
  }
}

void Mlp::forward_save_only(const Tensor& x, const LayerContext&, DType dtype, const StepContext& step,
                            std::unique_ptr<SublayerSaved>& saved) {
  Saved& kept = *new_saved<Saved>(&saved);
  project(x, step, kept.gate, kept.up, &kept);
  if (down_->adapter()) {
    down_->forward_save_only(inner_normed(activate(kept.gate, kept.up, step), step, nullptr), dtype, step,
                             kept.down_proj);
  }
  kept.down_proj.x = {};
}

void Mlp::backward(const Tensor& doutput, const LayerContext&, const StepContext& step, SublayerSaved& of, Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  Tensor dy = doutput;
  if (config_.output_scale != 1) {
    dy = doutput.clone(step.pool());
    ops::scale(dy, config_.output_scale);
  }
  const bool below = dx != nullptr || trains_beside(&*down_);
  NormSaved normed;
  if (down_->has_trainable() || (below && inner_norm_)) {
    saved.down_proj.x = inner_normed(activate(saved.gate, saved.up, step), step, &normed);
  }
  if (!below) return down_->backward(dy, step, std::move(saved.down_proj), nullptr, false);

  Tensor dproduct = Tensor::empty(step.pool(), saved.up.shape(), saved.up.dtype(), "MLP gradient");
  down_->backward(dy, step, std::move(saved.down_proj), &dproduct, false);
  saved.down_proj.x = {};
  if (inner_norm_) {
    Tensor wide = Tensor::zeros(step.pool(), dproduct.shape(), DType::f32, "norm gradient");
    inner_norm_->backward(dproduct, step, std::move(normed), wide);
    ops::cast(wide, dproduct);
  }
  // Each gradient takes the place of what it is computed from, element by element.
  Tensor dgate = saved.gate, dup = saved.up, none;
  if (config_.gated) {
    dgate = sparse(saved.gate, step);
    ops::gated_backward(config_.activation, dproduct, dgate, saved.up, dgate, dup, none);
    if (config_.gate_cutoff) ops::gaussian_topk_backward(dgate, saved.gate, *config_.gate_cutoff, dgate);
  } else if (config_.xielu) {
    ops::xielu_backward(dproduct, saved.up, alpha_p_->value, alpha_n_->value, dup, alpha_p_->gradient,
                        alpha_n_->gradient);
  } else {
    ops::activation_backward(config_.activation, dproduct, saved.up, dup);
  }
  dproduct = {};
  if (dgate && config_.gate_scale != 1) ops::scale(dgate, config_.gate_scale);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  project_backward(dgate, dup, step, saved, dx);
}

}  // namespace nibble
