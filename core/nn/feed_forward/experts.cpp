#include "nibble/core/nn/feed_forward/experts.h"

#include <algorithm>
#include <numeric>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/pick.h"

namespace nibble {

// What enters `down` is computed again from gate and up, and an expert's input is gathered again from x.
struct Experts::Saved final : SublayerSaved {
  Tensor x;  // the sublayer's input
  Routed routed;
  Tensor gate, up;  // [T * k, F] by expert, then token; gate is undefined when not gated
  std::vector<LinearSaved> gate_up_proj, gate_proj, up_proj, down_proj;  // by expert
  std::unique_ptr<SublayerSaved> shared;
  Tensor shared_out;                     // [T, D] before its gate, where it has one
  Tensor shared_weights, shared_logits;  // [T, 1] f32 of the gate
  LinearSaved shared_gate;

  void visit(const TensorVisitor& visitor) override {
    routed.visit(visitor);
    for (std::vector<LinearSaved>* linears : {&gate_up_proj, &gate_proj, &up_proj, &down_proj}) {
      for (LinearSaved& linear : *linears) linear.visit(visitor);
    }
    if (shared) shared->visit(visitor);
    shared_gate.visit(visitor);
    for (Tensor* tensor : {&x, &gate, &up, &shared_out, &shared_weights, &shared_logits}) {
      if (*tensor) visitor(*tensor);
    }
  }
  bool has_input() const override { return x.defined(); }
  void set_input(const Tensor& input) override {
    x = input;
    if (shared) shared->set_input(input);
  }
};

// One pass over T tokens: which of them every expert computes.
class Experts::Pass {
 public:
  Pass(const Tensor& input, const Routed& routed, size_t experts, const StepContext& context)
      : x(input), step(context), begins_(experts + 1) {
    const std::span<const int32_t> chosen = routed.chosen.span<const int32_t>();
    const auto k = static_cast<size_t>(routed.chosen.dim(1));
    for (const int32_t e : chosen) ++begins_[static_cast<size_t>(e) + 1];
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    std::vector<int32_t> tokens(chosen.size()), slots(chosen.size());
    std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
    for (size_t slot = 0; slot < chosen.size(); ++slot) {
      const auto row = static_cast<size_t>(next[static_cast<size_t>(chosen[slot])]++);
      tokens[row] = static_cast<int32_t>(slot / k);
      slots[row] = static_cast<int32_t>(slot);
    }
    MemoryPool& host = context.pool().host();
    tokens_ = Tensor::from<int32_t>(host, {std::ssize(tokens)}, tokens);
    slots_ = Tensor::from<int32_t>(host, {std::ssize(slots)}, slots);
    weights_ = Tensor::empty(context.pool(), {slots_.numel(), 1}, DType::f32, "weights of experts");
    ops::gather_rows(routed.weights.reshape({slots_.numel(), 1}), slots_, weights_);
  }

  int64_t rows() const { return begins_.back(); }
  int64_t begin(size_t e) const { return begins_[e]; }
  int64_t end(size_t e) const { return begins_[e + 1]; }
  int64_t count(size_t e) const { return end(e) - begin(e); }
  /// The expert's own of a tensor of all rows; [T * k] or more dimensions.
  Tensor own(const Tensor& all, size_t e) const { return all.rows(begin(e), end(e)); }
  Tensor tokens(size_t e) const { return own(tokens_, e); }
  /// Places of the rows among the weights [T, k].
  Tensor slots(size_t e) const { return own(slots_, e); }
  /// [n, 1] f32
  Tensor weights(size_t e) const { return own(weights_, e); }
  /// Rows of `from` [T, D], f32 or bf16.
  Tensor gather(const Tensor& from, size_t e) const {
    Tensor rows = Tensor::empty(step.pool(), {count(e), from.dim(1)}, from.dtype(), "rows of an expert");
    ops::gather_rows(from, tokens(e), rows);
    return rows;
  }
  /// Dropout knows rows by their keys.
  StepContext step_of(size_t e) const {
    StepContext own_step = step;
    if (!step.row_keys) return own_step;
    const std::span<const int64_t> keys = step.row_keys.span<const int64_t>();
    std::vector<int64_t> own_keys;
    for (const int32_t t : tokens(e).span<const int32_t>()) own_keys.push_back(keys[static_cast<size_t>(t)]);
    own_step.row_keys = Tensor::from<int64_t>(step.pool().host(), {std::ssize(own_keys)}, own_keys);
    return own_step;
  }

  const Tensor& x;
  const StepContext& step;

 private:
  std::vector<int64_t> begins_;
  Tensor tokens_, slots_, weights_;
};

namespace {

ops::Routing shared_gate_routing() { return {.k = 1, .score = ops::RouterScore::sigmoid}; }

// Row e of a bias [E, n] as [1, n] f32.
Tensor bias_row(const Parameter& bias, size_t e, const StepContext& step) {
  const Tensor row = bias.value.rows(static_cast<int64_t>(e), static_cast<int64_t>(e) + 1);
  if (row.dtype() == DType::f32 && row.aligned()) return row;
  Tensor wide = Tensor::empty(step.pool(), row.shape(), DType::f32, bias.name);
  ops::cast(row, wide);
  return wide;
}

// Columns 0, 2, ... or 1, 3, ... of a matrix [n, 2 F].
Tensor every_other(int64_t first, int64_t count, MemoryPool& pool) {
  std::vector<int32_t> columns;
  for (int64_t i = 0; i < count; ++i) columns.push_back(static_cast<int32_t>(first + 2 * i));
  return Tensor::from<int32_t>(pool.host(), {count}, columns);
}

}  // namespace

Experts::Experts(const std::string& prefix, const ExpertNames& names, const ExpertsConfig& config, const Makers& makers)
    : config_(config),
      router_(prefix + names.peft_router, prefix + names.router,
              names.correction.empty() ? "" : prefix + names.correction, config.width, config.experts,
              config.router_bias, config.routing, makers, config.correction_row,
              {names.router_scale.empty() ? "" : prefix + names.router_scale,
               names.expert_scale.empty() ? "" : prefix + names.expert_scale}) {
  const int64_t outputs = (config.gated ? 2 : 1) * config.hidden;
  if (!names.fused_gate_up.empty()) {
    const std::string gate_up = prefix + names.fused_gate_up, down = prefix + names.fused_down;
    (config.gated ? gate_up_ : up_) = makers.make_linears(gate_up, config.experts, outputs, config.width);
    down_ = makers.make_linears(down, config.experts, config.width, config.hidden);
    if (config.bias) {
      up_bias_ = makers.parameter(gate_up + "_bias", {config.experts, outputs});
      down_bias_ = makers.parameter(down + "_bias", {config.experts, config.width});
    }
  } else {
    NIBBLE_CHECK(!config.bias, "experts with Linears of their own have no biases");
    for (int64_t e = 0; e < config.experts; ++e) {
      const std::string own = prefix + names.experts + "." + std::to_string(e) + ".";
      if (config.gated) gate_.push_back(makers.make_linear(own + names.gate, config.hidden, config.width, false));
      up_.push_back(makers.make_linear(own + names.up, config.hidden, config.width, false));
      down_.push_back(makers.make_linear(own + names.down, config.width, config.hidden, false));
    }
  }
  if (config.shared_hidden > 0) {
    const MlpConfig shared = {.width = config.width,
                              .hidden = config.shared_hidden,
                              .activation = config.activation,
                              .gated = config.gated,
                              .output_scale = config.shared_scale};
    shared_ = std::make_unique<Mlp>(prefix, names.shared, shared, makers);
    if (!names.shared_gate.empty()) {
      shared_gate_ = makers.make_linear(prefix + names.shared_gate, 1, config.width, false);
    }
  }
}

bool Experts::inner_trainable() const {
  const auto any = [](const std::vector<Linear>& linears) {
    return std::any_of(linears.begin(), linears.end(), [](const Linear& linear) { return linear.has_trainable(); });
  };
  return any(gate_up_) || any(gate_) || any(up_) || (up_bias_ && up_bias_->trainable);
}

bool Experts::has_trainable() const {
  return router_.has_trainable() || inner_trainable() ||
         std::any_of(down_.begin(), down_.end(), [](const Linear& linear) { return linear.has_trainable(); }) ||
         (down_bias_ && down_bias_->trainable) || (shared_ && shared_->has_trainable()) ||
         (shared_gate_ && shared_gate_->has_trainable());
}

Tensor Experts::input(const Pass& pass, size_t e) const {
  Tensor rows = pass.gather(pass.x, e);
  if (config_.weighted_input) ops::scale_rows(rows, pass.weights(e), rows);
  return rows;
}

void Experts::project(const Tensor& x, size_t e, const StepContext& step, Tensor& gate, Tensor& up, Saved* saved) {
  const auto keep = [&](std::vector<LinearSaved>& of) { return saved ? &of[e] : nullptr; };
  Saved none;
  Saved& kept = saved ? *saved : none;
  if (gate_up_.empty()) {
    if (config_.gated) gate_[e].forward(x, gate, step, keep(kept.gate_proj));
    up_[e].forward(x, up, step, keep(kept.up_proj));
    if (up_bias_) ops::add_bias(bias_row(*up_bias_, e, step), up);
    return;
  }
  Tensor both = Tensor::empty(step.pool(), {x.dim(0), 2 * config_.hidden}, up.dtype(), "gate and up of an expert");
  gate_up_[e].forward(x, both, step, keep(kept.gate_up_proj));
  if (up_bias_) ops::add_bias(bias_row(*up_bias_, e, step), both);
  if (config_.interleaved) {
    ops::take_columns(both, every_other(0, config_.hidden, step.pool()), gate);
    ops::take_columns(both, every_other(1, config_.hidden, step.pool()), up);
  } else {
    ops::copy_columns_out(both, 0, gate);
    ops::copy_columns_out(both, config_.hidden, up);
  }
}

void Experts::project_backward(const Tensor& dgate, const Tensor& dup, size_t e, const StepContext& step,
                               const Tensor& x, Saved& saved, Tensor* dx) {
  const auto backward = [&](Linear& linear, LinearSaved& of, const Tensor& dy, bool accumulate) {
    if (linear.has_trainable()) of.x = x;
    linear.backward(dy, step, std::move(of), dx, accumulate);
  };
  const auto bias_backward = [&](const Tensor& dy) {
    if (!up_bias_ || !up_bias_->trainable) return;
    Tensor row = up_bias_->gradient.rows(static_cast<int64_t>(e), static_cast<int64_t>(e) + 1);
    ops::bias_backward(dy, row);
  };
  if (gate_up_.empty()) {
    if (config_.gated) backward(gate_[e], saved.gate_proj[e], dgate, false);
    backward(up_[e], saved.up_proj[e], dup, config_.gated);
    return bias_backward(dup);
  }
  Tensor both = Tensor::empty(step.pool(), {dup.dim(0), 2 * config_.hidden}, dup.dtype(), "gradient of an expert");
  if (config_.interleaved) {
    ops::put_columns(dgate, every_other(0, config_.hidden, step.pool()), both);
    ops::put_columns(dup, every_other(1, config_.hidden, step.pool()), both);
  } else {
    ops::copy_columns_in(dgate, 0, both);
    ops::copy_columns_in(dup, config_.hidden, both);
  }
  backward(gate_up_[e], saved.gate_up_proj[e], both, false);
  bias_backward(both);
}

Tensor Experts::activate(const Tensor& gate, const Tensor& up, const StepContext& step) const {
  Tensor product = Tensor::empty(step.pool(), up.shape(), up.dtype(), "activation of an expert");
  if (config_.clamp > 0) {
    ops::clamped_gated_forward(config_.activation, config_.clamp, gate, up, product);
  } else if (config_.gated) {
    ops::gated_forward(config_.activation, gate, up, product);
  } else {
    ops::activation_forward(config_.activation, up, product);
  }
  return product;
}

// sum [T, D] f32 += what expert e gives; null: only what `saved` keeps of it is wanted.
void Experts::run_expert(const Pass& pass, size_t e, Tensor* sum, Saved* saved) {
  if (pass.count(e) == 0) return;
  const StepContext step = pass.step_of(e);
  const auto rows = [&](const Tensor* all) {
    return all ? pass.own(*all, e)
               : Tensor::empty(step.pool(), {pass.count(e), config_.hidden}, step.compute_dtype, "an expert's gate");
  };
  Tensor up = rows(saved ? &saved->up : nullptr), gate;
  if (config_.gated) gate = rows(saved ? &saved->gate : nullptr);
  project(input(pass, e), e, step, gate, up, saved);
  LinearSaved* down_saved = saved ? &saved->down_proj[e] : nullptr;
  if (!sum && !down_[e].adapter()) return;
  Tensor active = activate(gate, up, step);
  if (!config_.weighted_input) ops::scale_rows(active, pass.weights(e), active);
  if (!sum) {
    down_[e].forward_save_only(active, DType::f32, step, *down_saved);
  } else {
    Tensor y = Tensor::empty(step.pool(), {pass.count(e), config_.width}, DType::f32, "output of an expert");
    down_[e].forward(active, y, step, down_saved);
    if (down_bias_) {
      const Tensor bias = bias_row(*down_bias_, e, step);
      config_.weighted_input ? ops::add_bias(bias, y) : ops::matmul_nn(pass.weights(e), bias, y, true);
    }
    ops::scatter_add_rows(y, pass.tokens(e), *sum);
  }
  if (saved) down_saved->x = {};
}

// dx [T, D] f32 += what comes from expert e; dweights [T k, 1] get theirs.
void Experts::run_expert_backward(const Pass& pass, size_t e, const Tensor& dy, Saved& saved, Tensor* dx,
                                  Tensor& dweights) {
  if (pass.count(e) == 0) return;
  const StepContext step = pass.step_of(e);
  const Tensor dys = pass.gather(dy, e), weights = pass.weights(e);
  Tensor gate = config_.gated ? pass.own(saved.gate, e) : Tensor(), up = pass.own(saved.up, e);
  Tensor dweight = Tensor::zeros(step.pool(), weights.shape(), DType::f32, "gradient of weights");

  const Tensor active = activate(gate, up, step);
  if (down_[e].has_trainable()) {
    Tensor weighted = active;
    if (!config_.weighted_input) {
      weighted = Tensor::empty(step.pool(), active.shape(), active.dtype(), "activation of an expert");
      ops::scale_rows(active, weights, weighted);
    }
    saved.down_proj[e].x = weighted;
  }
  Tensor dactive = Tensor::empty(step.pool(), active.shape(), active.dtype(), "gradient of an expert");
  down_[e].backward(dys, step, std::move(saved.down_proj[e]), &dactive, false);
  if (!config_.weighted_input) ops::scale_rows_backward(dactive, active, weights, dactive, dweight);
  if (down_bias_) down_bias_backward(pass, e, dys, dweight);

  // Each gradient takes the place of what it is computed from, element by element.
  Tensor dgate = gate, dup = up, none;
  if (config_.clamp > 0) {
    ops::clamped_gated_backward(config_.activation, config_.clamp, dactive, gate, up, dgate, dup);
  } else if (config_.gated) {
    ops::gated_backward(config_.activation, dactive, gate, up, dgate, dup, none);
  } else {
    ops::activation_backward(config_.activation, dactive, up, dup);
  }
  dactive = {};

  const bool wants_dx = dx || config_.weighted_input;
  const Tensor x = inner_trainable() || config_.weighted_input ? input(pass, e) : Tensor();
  Tensor dxs;
  if (wants_dx) dxs = Tensor::empty(step.pool(), {pass.count(e), config_.width}, DType::f32, "gradient of an expert");
  project_backward(dgate, dup, e, step, x, saved, wants_dx ? &dxs : nullptr);
  if (config_.weighted_input) ops::scale_rows_backward(dxs, pass.gather(pass.x, e), weights, dxs, dweight);
  if (dx) ops::scatter_add_rows(dxs, pass.tokens(e), *dx);
  ops::scatter_add_rows(dweight, pass.slots(e), dweights);
}

void Experts::down_bias_backward(const Pass& pass, size_t e, const Tensor& dys, Tensor& dweight) {
  const Tensor weights = pass.weights(e);
  if (!config_.weighted_input) ops::matmul_nt(dys, bias_row(*down_bias_, e, pass.step), dweight, true);
  if (!down_bias_->trainable) return;
  Tensor row = down_bias_->gradient.rows(static_cast<int64_t>(e), static_cast<int64_t>(e) + 1);
  if (config_.weighted_input) return ops::bias_backward(dys, row);
  Tensor wide = dys;
  if (dys.dtype() != DType::f32) {
    wide = Tensor::empty(pass.step.pool(), dys.shape(), DType::f32, "gradient of an expert");
    ops::cast(dys, wide);
  }
  ops::matmul_tn(weights, wide, row, true);
}

void Experts::add_shared(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& sum,
                         Saved* saved) {
  if (!shared_) return;
  const DType dtype = shared_gate_ ? step.compute_dtype : DType::f32;
  Tensor out = Tensor::empty(step.pool(), x.shape(), dtype, "output of the shared expert");
  shared_->forward(x, context, step, out, saved ? &saved->shared : nullptr);
  if (!shared_gate_) return ops::add(out, sum);
  const Tensor weights = gate_shared(x, step, saved);
  if (saved) saved->shared_out = out;
  Tensor scaled = Tensor::empty(step.pool(), x.shape(), dtype, "output of the shared expert");
  ops::scale_rows(out, weights, scaled);
  ops::add(scaled, sum);
}

// [T, 1] f32
Tensor Experts::gate_shared(const Tensor& x, const StepContext& step, Saved* saved) {
  const Shape shape = {x.dim(0), 1};
  Tensor logits = Tensor::empty(step.pool(), shape, DType::f32, "gate of the shared expert");
  Tensor weights = Tensor::empty(step.pool(), shape, DType::f32, "gate of the shared expert");
  Tensor chosen = Tensor::empty(step.pool().host(), shape, DType::i32, "the shared expert");
  shared_gate_->forward(x, logits, step, saved ? &saved->shared_gate : nullptr);
  ops::route(logits, {}, shared_gate_routing(), chosen, weights);
  if (saved) {
    saved->shared_gate.x = {};
    saved->shared_logits = logits;
    saved->shared_weights = weights;
  }
  return weights;
}

void Experts::shared_backward(const Tensor& dy, const LayerContext& context, const StepContext& step, Saved& saved,
                              Tensor* dx) {
  if (!shared_) return;
  Tensor dshared = dy;
  if (shared_gate_) {
    const Shape shape = saved.shared_weights.shape();
    Tensor dweights = Tensor::empty(step.pool(), shape, DType::f32, "gradient of the shared gate");
    dshared = Tensor::empty(step.pool(), dy.shape(), dy.dtype(), "gradient of the shared expert");
    ops::scale_rows_backward(dy, saved.shared_out, saved.shared_weights, dshared, dweights);
    Tensor dlogits = Tensor::empty(step.pool(), shape, DType::f32, "gradient of the shared gate");
    const Tensor chosen = Tensor::zeros(step.pool().host(), shape, DType::i32, "the shared expert");
    ops::route_backward(dweights, saved.shared_logits, chosen, shared_gate_routing(), dlogits);
    Tensor narrow = dlogits;
    if (step.compute_dtype != DType::f32) {
      narrow = Tensor::empty(step.pool(), shape, step.compute_dtype, "gradient of the shared gate");
      ops::cast(dlogits, narrow);
    }
    if (shared_gate_->has_trainable()) saved.shared_gate.x = saved.x;
    shared_gate_->backward(narrow, step, std::move(saved.shared_gate), dx, true);
  }
  Tensor part;
  if (!dx && !shared_->has_trainable()) return;
  shared_->backward(dshared, context, step, *saved.shared, dx ? &part : nullptr);
  if (dx) ops::add(part, *dx);
}

Experts::Saved* Experts::keep(std::unique_ptr<SublayerSaved>* saved, const Tensor& x, const StepContext& step) const {
  Saved* kept = new_saved<Saved>(saved);
  if (!kept) return nullptr;
  const bool needs_input = inner_trainable() || router_.has_trainable() || config_.weighted_input ||
                           (shared_ && shared_->has_trainable()) || (shared_gate_ && shared_gate_->has_trainable());
  if (needs_input) kept->x = x;
  const Shape shape = {x.dim(0) * config_.routing.k, config_.hidden};
  const auto make = [&] { return Tensor::empty(step.pool(), shape, step.compute_dtype, "activations of experts"); };
  kept->up = make();
  if (config_.gated) kept->gate = make();
  kept->gate_up_proj.resize(gate_up_.size());
  kept->gate_proj.resize(gate_.size());
  kept->up_proj.resize(up_.size());
  kept->down_proj.resize(down_.size());
  return kept;
}

void Experts::leave_inputs_out(Saved& saved) {
  for (auto* linears : {&saved.gate_up_proj, &saved.gate_proj, &saved.up_proj}) {
    for (LinearSaved& linear : *linears) linear.x = {};
  }
}

void Experts::run(const Tensor& x, const Tensor& router_x, const StepContext& step, Tensor* sum, Saved* saved) {
  Routed routed = router_.forward(router_x, step, saved != nullptr);
  const Pass pass(x, routed, down_.size(), step);
  for (size_t e = 0; e < down_.size(); ++e) run_expert(pass, e, sum, saved);
  if (!saved) return;
  leave_inputs_out(*saved);
  saved->routed = std::move(routed);
}

void Experts::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      std::unique_ptr<SublayerSaved>* saved) {
  forward_routed_by(x, x, context, step, y, saved);
}

void Experts::forward_routed_by(const Tensor& x, const Tensor& router_x, const LayerContext& context,
                                const StepContext& step, Tensor& y, std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = keep(saved, x, step);
  Tensor sum = y.dtype() == DType::f32 ? y : Tensor::empty(step.pool(), y.shape(), DType::f32, "sum of experts");
  sum.zero();
  run(x, router_x, step, &sum, kept);
  add_shared(x, context, step, sum, kept);
  if (y.dtype() != DType::f32) ops::cast(sum, y);
}

void Experts::forward_save_only(const Tensor& x, const LayerContext& context, DType, const StepContext& step,
                                std::unique_ptr<SublayerSaved>& saved) {
  Saved* kept = keep(&saved, x, step);
  run(x, x, step, nullptr, kept);
  if (!shared_) return;
  if (!shared_gate_) return shared_->forward_save_only(x, context, DType::f32, step, kept->shared);
  Tensor unused = Tensor::zeros(step.pool(), x.shape(), DType::f32, "sum of experts");
  add_shared(x, context, step, unused, kept);
}

void Experts::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                       Tensor* dx) {
  const Tensor router_x = dynamic_cast<Saved&>(of).x;
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  backward_routed_by(dy, router_x, context, step, of, dx, dx);
}

// The parts of dx in one order: of the experts, of the shared MLP, of the router.
void Experts::backward_routed_by(const Tensor& dy, const Tensor& router_x, const LayerContext& context,
                                 const StepContext& step, SublayerSaved& of, Tensor* dx, Tensor* router_dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  if (dx) dx->zero();
  Tensor dweights = Tensor::zeros(step.pool(), {saved.routed.chosen.numel(), 1}, DType::f32, "gradient of weights");
  {
    const Pass pass(saved.x, saved.routed, down_.size(), step);
    for (size_t e = 0; e < down_.size(); ++e) run_expert_backward(pass, e, dy, saved, dx, dweights);
  }
  saved.gate = saved.up = {};
  shared_backward(dy, context, step, saved, dx);
  const Shape shape = saved.routed.weights.shape();
  router_.backward(dweights.reshape(shape), router_x, step, std::move(saved.routed), router_dx);
}

void Experts::visit(const ParameterVisitor& visitor) {
  router_.visit(visitor);
  for (size_t e = 0; e < down_.size(); ++e) {
    for (std::vector<Linear>* linears : {&gate_up_, &gate_, &up_, &down_}) {
      if (!linears->empty()) (*linears)[e].visit(visitor);
    }
  }
  for (const auto& bias : {up_bias_, down_bias_}) {
    if (bias) visitor(*bias);
  }
  if (shared_) shared_->visit(visitor);
  if (shared_gate_) shared_gate_->visit(visitor);
}

void Experts::visit_linears(const std::function<void(Linear&)>& visitor) {
  visitor(router_.linear());
  for (size_t e = 0; e < down_.size(); ++e) {
    for (std::vector<Linear>* linears : {&gate_up_, &gate_, &up_, &down_}) {
      if (!linears->empty()) visitor((*linears)[e]);
    }
  }
  if (shared_) shared_->visit_linears(visitor);
  if (shared_gate_) visitor(*shared_gate_);
}

}  // namespace nibble
