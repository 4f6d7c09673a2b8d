#include "nibble/core/nn/feed_forward/experts.h"

#include <stdexcept>

#include "nibble/core/nn/feed_forward/experts_pass.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/pick.h"

namespace nibble {

namespace {

ops::Routing shared_gate_routing() { return {.k = 1, .score = ops::RouterScore::sigmoid}; }

// Row e of a bias [E, n] as [1, n] f32.
Tensor bias_row(const Parameter& bias, int64_t e, const StepContext& step) {
  Tensor row = bias.value.rows(e, e + 1);
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

// Of an expert on another rank, whose adapter every rank has: it multiplies nothing here.
class WeightElsewhere final : public LinearWeight {
 public:
  WeightElsewhere(int64_t out, int64_t in) : out_(out), in_(in) {}
  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  void forward(const Tensor&, Tensor&, bool, const ops::LowRankEpilogue*) const override { refuse(); }
  void backward_input(const Tensor&, Tensor&, bool, const ops::LowRankEpilogue*) const override { refuse(); }
  void backward_weight(const Tensor&, const Tensor&) override { refuse(); }
  bool trainable() const override { return false; }
  Tensor dequantize(int64_t, int64_t, MemoryPool&) const override { refuse(); }
  std::vector<NamedTensor> parts() const override { return {}; }
  Parameter* parameter() override { return nullptr; }
  std::vector<Tensor*> storage() override { return {}; }
  std::unique_ptr<LinearWeight> shard(const ShardSpec&, MemoryPool&) const override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("the weight of an expert on another rank"); }

  int64_t out_, in_;
};

}  // namespace

Experts::Experts(const std::string& prefix, const ExpertNames& names, const ExpertsConfig& config, const Makers& makers)
    : config_(config),
      exchange_(makers.experts),
      router_(prefix + names.peft_router, prefix + names.router,
              names.correction.empty() ? "" : prefix + names.correction, config.width, config.experts,
              config.router_bias, config.routing, makers, config.correction_row,
              {names.router_scale.empty() ? "" : prefix + names.router_scale,
               names.expert_scale.empty() ? "" : prefix + names.expert_scale}) {
  const int64_t outputs = (config.gated ? 2 : 1) * config.hidden, width = config.expert_width();
  if (config.latent > 0) {
    to_latent_ = makers.make_linear(prefix + names.to_latent, width, config.width, config.latent_bias);
    from_latent_ = makers.make_linear(prefix + names.from_latent, config.width, width, config.latent_bias);
  }
  const Range here = exchange_ ? exchange_->here(config.experts) : Range{0, config.experts};
  const auto fused = [&](const std::string& name, int64_t out, int64_t in) {
    return exchange_ ? makers.make_linears(name, config.experts, out, in, here, exchange_->pool())
                     : makers.make_linears(name, config.experts, out, in);
  };
  if (!names.fused_gate_up.empty()) {
    const std::string gate_up = prefix + names.fused_gate_up, down = prefix + names.fused_down;
    (config.gated ? gate_up_ : up_).each = fused(gate_up, outputs, width);
    down_.each = fused(down, width, config.hidden);
    NIBBLE_CHECK(!config.bias || !config.weighted_input, "experts with weights on their input have no biases");
    if (config.bias) {
      up_bias_ = makers.parameter(gate_up + "_bias", {config.experts, outputs});
      down_bias_ = makers.parameter(down + "_bias", {config.experts, width});
    }
  } else {
    NIBBLE_CHECK(!config.bias, "experts with Linears of their own have no biases");
    for (int64_t e = 0; e < config.experts; ++e) {
      const bool is_here = e >= here.begin && e < here.end;
      const auto add = [&](ExpertLinears& linears, const std::string& name, int64_t out, int64_t in) {
        const std::string own = prefix + names.experts + "." + std::to_string(e) + "." + name;
        if (is_here) return void(linears.each.push_back(makers.make_linear(own, out, in, false)));
        (e < here.begin ? before_ : after_).emplace_back(own, std::make_unique<WeightElsewhere>(out, in));
      };
      if (config.gated) add(gate_, names.gate, config.hidden, width);
      add(up_, names.up, config.hidden, width);
      add(down_, names.down, width, config.hidden);
    }
  }
  if (config.shared_hidden > 0) {
    const MlpConfig shared = {.width = config.width,
                              .hidden = config.shared_hidden,
                              .activation = config.activation,
                              .gated = config.gated,
                              .bias = config.shared_bias,
                              .output_scale = config.shared_scale};
    shared_ = std::make_unique<Mlp>(prefix, names.shared, shared, makers);
    if (!names.shared_gate.empty()) {
      shared_gate_ = makers.make_linear(prefix + names.shared_gate, 1, config.width, false);
    }
  }
}

bool Experts::inner_trainable() const {
  return gate_up_.has_trainable() || gate_.has_trainable() || up_.has_trainable() || (up_bias_ && up_bias_->trainable);
}

// What the experts see, in the compute dtype.
ExpertRows Experts::input(const Pass& pass) const {
  if (!config_.weighted_input) return {pass.x, ops::RowOrder::tokens};
  Tensor rows = pass.empty(config_.expert_width(), pass.x.dtype(), "input of experts");
  ops::gather_rows(pass.x, pass.groups.rows, rows);
  ops::scale_rows(rows, pass.weights, rows);
  return {rows};
}

void Experts::add_up_bias(const Pass& pass, const Tensor& y) const {
  if (!up_bias_) return;
  for (int64_t g = 0; g < pass.groups.groups(); ++g) {
    Tensor own = pass.own(y, g);
    ops::add_bias(bias_row(*up_bias_, pass.expert(g), pass.step), own);
  }
}

// gate and up [N, F], made by the caller.
void Experts::project(const Pass& pass, Tensor& gate, Tensor& up, Part* saved) {
  const ExpertRows x = input(pass);
  const StepContext& step = pass.step;
  if (gate_up_.empty()) {
    if (config_.gated) gate_.forward(x, pass.groups, {gate}, step, saved ? &saved->gate_proj : nullptr);
    up_.forward(x, pass.groups, {up}, step, saved ? &saved->up_proj : nullptr);
    return add_up_bias(pass, up);
  }
  Tensor both = pass.empty(2 * config_.hidden, up.dtype(), "gate and up of experts");
  gate_up_.forward(x, pass.groups, {both}, step, saved ? &saved->gate_up_proj : nullptr);
  add_up_bias(pass, both);
  if (config_.interleaved) {
    ops::take_columns(both, every_other(0, config_.hidden, step.pool()), gate);
    ops::take_columns(both, every_other(1, config_.hidden, step.pool()), up);
  } else {
    ops::copy_columns_out(both, 0, gate);
    ops::copy_columns_out(both, config_.hidden, up);
  }
}

void Experts::project_backward(const Pass& pass, const Tensor& dgate, const Tensor& dup, Part& saved,
                               const ExpertRows* dx, const ExpertRows* dx_of_gate) {
  const StepContext& step = pass.step;
  const ExpertRows x = inner_trainable() ? input(pass) : ExpertRows();
  const auto bias_backward = [&](const Tensor& dy) {
    for (int64_t g = 0; up_bias_ && up_bias_->trainable && g < pass.groups.groups(); ++g) {
      Tensor row = up_bias_->gradient.rows(pass.expert(g), pass.expert(g) + 1);
      ops::bias_backward(pass.own(dy, g), row);
    }
  };
  if (gate_up_.empty()) {
    if (config_.gated) gate_.backward({dgate}, x, pass.groups, step, std::move(saved.gate_proj), dx_of_gate, false);
    up_.backward({dup}, x, pass.groups, step, std::move(saved.up_proj), dx, config_.gated);
    return bias_backward(dup);
  }
  Tensor both = pass.empty(2 * config_.hidden, dup.dtype(), "gradient of experts");
  if (config_.interleaved) {
    ops::put_columns(dgate, every_other(0, config_.hidden, step.pool()), both);
    ops::put_columns(dup, every_other(1, config_.hidden, step.pool()), both);
  } else {
    ops::copy_columns_in(dgate, 0, both);
    ops::copy_columns_in(dup, config_.hidden, both);
  }
  gate_up_.backward({both}, x, pass.groups, step, std::move(saved.gate_up_proj), dx, false);
  bias_backward(both);
}

// In place of `up` where that is not kept.
Tensor Experts::activate(const Pass& pass, const Tensor& gate, const Tensor& up, bool keep) const {
  Tensor product = keep ? pass.empty(config_.hidden, up.dtype(), "activation of experts") : up;
  if (config_.clamp > 0) {
    ops::clamped_gated_forward(config_.activation, config_.clamp, gate, up, product);
  } else if (config_.gated) {
    ops::gated_forward(config_.activation, gate, up, product);
  } else {
    ops::activation_forward(config_.activation, up, product);
  }
  return product;
}

ExpertLinears::Biases Experts::down_biases(const Pass& pass) const {
  ExpertLinears::Biases biases{.values = {}, .weights = pass.weights.reshape({pass.groups.size()})};
  for (int64_t g = 0; g < pass.groups.groups(); ++g) {
    biases.values.push_back(bias_row(*down_bias_, pass.expert(g), pass.step).reshape({config_.expert_width()}));
  }
  return biases;
}

// sum [T, D] f32 += what the experts give; null: only what `saved` keeps of it is wanted.
void Experts::run_experts(const Pass& pass, const ExpertRows* sum, Part* saved) {
  const auto rows = [&] { return pass.empty(config_.hidden, pass.step.compute_dtype, "activations of experts"); };
  Tensor up = rows(), gate;
  if (config_.gated) gate = rows();
  project(pass, gate, up, saved);
  if (saved) {
    saved->gate = gate;
    saved->up = up;
  }
  if (!sum && !down_.has_adapter()) return;
  Tensor active = activate(pass, gate, up, saved != nullptr);
  if (!config_.weighted_input) ops::scale_rows(active, pass.weights, active);
  if (!sum) return down_.forward_save_only({active}, pass.groups, pass.step, saved->down_proj);
  std::optional<ExpertLinears::Biases> biases;
  if (down_bias_) biases = down_biases(pass);
  down_.forward({active}, pass.groups, *sum, pass.step, saved ? &saved->down_proj : nullptr,
                biases ? &*biases : nullptr);
}

// dx [T, D] f32 += what comes from the experts, but dx_of_gate, where it is not null, what comes from gates that are
// Linears of their own; dweights [T k, 1] get theirs.
void Experts::run_experts_backward(const Pass& pass, const Tensor& dy, Part& saved, const ExpertRows* dx,
                                   const ExpertRows* dx_of_gate, Tensor& dweights) {
  const StepContext& step = pass.step;
  const ExpertRows dys = {dy, ops::RowOrder::tokens};
  Tensor gate = std::move(saved.gate), up = std::move(saved.up);
  saved.gate = saved.up = {};
  Tensor dweight = Tensor::zeros(step.pool(), pass.weights.shape(), DType::f32, "gradient of weights");
  Tensor dactive = pass.empty(config_.hidden, up.dtype(), "gradient of experts");
  {
    const Tensor active = activate(pass, gate, up, true);
    Tensor weighted = active;
    if (down_.has_trainable() && !config_.weighted_input) {
      weighted = pass.empty(config_.hidden, active.dtype(), "activation of experts");
      ops::scale_rows(active, pass.weights, weighted);
    }
    const ExpertRows to = {dactive};
    down_.backward(dys, {weighted}, pass.groups, step, std::move(saved.down_proj), &to, false);
    if (!config_.weighted_input) ops::scale_rows_backward(dactive, active, pass.weights, dactive, dweight);
  }
  if (down_bias_) down_bias_backward(pass, dys, dweight);

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

  ExpertRows to;
  if (config_.weighted_input) {
    to = {pass.empty(config_.expert_width(), DType::f32, "gradient of experts")};
  } else if (dx) {
    to = *dx;
  }
  const ExpertRows of_gate = dx_of_gate ? *dx_of_gate : to;
  project_backward(pass, dgate, dup, saved, to.values ? &to : nullptr, to.values ? &of_gate : nullptr);
  if (config_.weighted_input) {
    Tensor x = pass.empty(config_.expert_width(), pass.x.dtype(), "input of experts");
    ops::gather_rows(pass.x, pass.groups.rows, x);
    ops::scale_rows_backward(to.values, x, pass.weights, to.values, dweight);
    Tensor sum = dx ? dx->values : Tensor();
    for (int64_t g = 0; dx && g < pass.groups.groups(); ++g) {
      ops::scatter_add_rows(pass.own(to.values, g), pass.own(pass.groups.rows, g), sum);
    }
  }
  ops::scatter_add_rows(dweight, pass.slots, dweights);
}

void Experts::down_bias_backward(const Pass& pass, const ExpertRows& dys, Tensor& dweight) {
  MemoryPool& pool = pass.step.pool();
  for (int64_t g = 0; g < pass.groups.groups(); ++g) {
    const int64_t e = pass.expert(g);
    const Tensor dy = rows_of_group(dys, pass.groups, g, pool);
    Tensor own = pass.own(dweight, g);
    ops::matmul_nt(dy, bias_row(*down_bias_, e, pass.step), own, true);
    if (!down_bias_->trainable) continue;
    Tensor row = down_bias_->gradient.rows(e, e + 1);
    ops::matmul_tn(pass.own(pass.weights, g), in_dtype(dy, DType::f32, pass.step), row, true);
  }
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
    if (shared_gate_->has_trainable()) saved.shared_gate.x = saved.x;
    shared_gate_->backward(in_compute_dtype(dlogits, step), step, std::move(saved.shared_gate), dx, true);
  }
  Tensor part;
  if (!dx && !shared_->has_trainable()) return;
  shared_->backward(dshared, context, step, *saved.shared, dx ? &part : nullptr);
  if (dx) ops::add(part, *dx);
}

Experts::Saved* Experts::saved_with_input(std::unique_ptr<SublayerSaved>* saved, const Tensor& x) const {
  Saved* kept = new_saved<Saved>(saved);
  if (!kept) return nullptr;
  const bool needs_input = inner_trainable() || router_.has_trainable() || config_.weighted_input ||
                           (shared_ && shared_->has_trainable()) || (shared_gate_ && shared_gate_->has_trainable()) ||
                           (to_latent_ && to_latent_->has_trainable());
  if (needs_input) kept->x = x;
  return kept;
}

void Experts::run(const Tensor& x, const Tensor& router_x, const StepContext& step, Tensor* sum, Saved* saved) {
  Routed routed = router_.forward(router_x, step, saved != nullptr);
  if (exchange_) {
    run_exchanged(x, routed, step, sum, saved);
  } else {
    if (saved) saved->parts.resize(1);
    const ExpertRows to{sum ? *sum : Tensor(), ops::RowOrder::tokens};
    run_experts(Pass(x, routed.chosen, routed.weights, down_.each.size(), 0, step), sum ? &to : nullptr,
                saved ? saved->parts.data() : nullptr);
  }
  if (saved) saved->routed = std::move(routed);
}

// sum [T, D] f32 = what the experts give, by way of the latent width.
void Experts::run_in_latent(const Tensor& x, const Tensor& router_x, const StepContext& step, Tensor& sum,
                            Saved* saved) {
  const Shape shape = {x.dim(0), config_.latent};
  Tensor latent = Tensor::empty(step.pool(), shape, step.compute_dtype, "latent input of experts");
  to_latent_->forward(x, latent, step, saved ? &saved->to_latent : nullptr);
  if (saved) {
    saved->to_latent.x = {};
    saved->latent = latent;
  }
  Tensor inner = Tensor::zeros(step.pool(), shape, DType::f32, "sum of experts");
  run(latent, router_x, step, &inner, saved);
  from_latent_->forward(in_compute_dtype(inner, step), sum, step, saved ? &saved->from_latent : nullptr);
}

void Experts::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      std::unique_ptr<SublayerSaved>* saved) {
  forward_routed_by(x, x, context, step, y, saved);
}

void Experts::forward_routed_by(const Tensor& x, const Tensor& router_x, const LayerContext& context,
                                const StepContext& step, Tensor& y, std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = saved_with_input(saved, x);
  Tensor sum = y.dtype() == DType::f32 ? y : Tensor::empty(step.pool(), y.shape(), DType::f32, "sum of experts");
  if (to_latent_) {
    run_in_latent(x, router_x, step, sum, kept);
  } else {
    sum.zero();
    run(x, router_x, step, &sum, kept);
  }
  add_shared(x, context, step, sum, kept);
  if (y.dtype() != DType::f32) ops::cast(sum, y);
}

void Experts::forward_save_only(const Tensor& x, const LayerContext& context, DType, const StepContext& step,
                                std::unique_ptr<SublayerSaved>& saved) {
  Saved* kept = saved_with_input(&saved, x);
  if (to_latent_) {
    Tensor unused = Tensor::empty(step.pool(), x.shape(), DType::f32, "sum of experts");
    run_in_latent(x, x, step, unused, kept);
  } else {
    run(x, x, step, nullptr, kept);
  }
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

// dx [T, ...] f32 += what comes from the experts, which saw x.
void Experts::run_backward(const Tensor& x, const Tensor& dy, const StepContext& step, Saved& saved, Tensor* dx,
                           Tensor& dweights) {
  if (exchange_) return run_exchanged_backward(dy, step, saved, dx, dweights);
  const Pass pass(x, saved.routed.chosen, saved.routed.weights, down_.each.size(), 0, step);
  const ExpertRows to{dx ? *dx : Tensor(), ops::RowOrder::tokens};
  run_experts_backward(pass, dy, saved.parts.front(), dx ? &to : nullptr, nullptr, dweights);
}

void Experts::latent_backward(const Tensor& dy, const StepContext& step, Saved& saved, Tensor* dx, Tensor& dweights) {
  const Shape shape = {dy.dim(0), config_.latent};
  Tensor dsum = Tensor::empty(step.pool(), shape, dy.dtype(), "gradient of experts");
  from_latent_->backward(dy, step, std::move(saved.from_latent), &dsum, false);
  const bool needs_latent = dx || to_latent_->has_trainable();
  Tensor dlatent;
  if (needs_latent) dlatent = Tensor::zeros(step.pool(), shape, DType::f32, "latent gradient of experts");
  run_backward(saved.latent, dsum, step, saved, needs_latent ? &dlatent : nullptr, dweights);
  if (!needs_latent) return;
  if (to_latent_->has_trainable()) saved.to_latent.x = saved.x;
  to_latent_->backward(in_compute_dtype(dlatent, step), step, std::move(saved.to_latent), dx, true);
}

// The parts of dx in one order: of the experts, of the shared MLP, of the router.
void Experts::backward_routed_by(const Tensor& dy, const Tensor& router_x, const LayerContext& context,
                                 const StepContext& step, SublayerSaved& of, Tensor* dx, Tensor* router_dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  if (dx) dx->zero();
  Tensor dweights = Tensor::zeros(step.pool(), {saved.routed.chosen.numel(), 1}, DType::f32, "gradient of weights");
  if (to_latent_) {
    latent_backward(dy, step, saved, dx, dweights);
  } else {
    run_backward(saved.x, dy, step, saved, dx, dweights);
  }
  shared_backward(dy, context, step, saved, dx);
  const Shape shape = saved.routed.weights.shape();
  router_.backward(dweights.reshape(shape), router_x, step, std::move(saved.routed), router_dx);
}

}  // namespace nibble
