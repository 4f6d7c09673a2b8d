#include "nibble/core/nn/mixers/linear_attention/linear_attention.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/norm.h"

namespace nibble {

namespace {

Tensor like(const Tensor& x, DType dtype, const StepContext& step) {
  return Tensor::empty(step.pool(), x.shape(), dtype, "linear attention");
}

constexpr float kUnitEps = 1e-6f;  // under the root of the squares of a query or key

}  // namespace

// What attention sees, all f32.
struct LinearAttention::Pieces {
  Tensor convolved;     // before its activation
  Tensor q_raw, k_raw;  // before they got length 1, with the delta rule
  Tensor q_inverse, k_inverse;
  Tensor q, k, v, step, log_decay, beta;
};

void LinearAttention::Saved::visit(const TensorVisitor& visitor) {
  for (Tensor* tensor : {&in.mixed, &in.gate, &in.step, &in.beta, &out}) {
    if (*tensor) visitor(*tensor);
  }
}

LinearAttention::LinearAttention(const std::string& prefix, const LinearAttentionNames& names,
                                 const LinearAttentionConfig& config, const ParameterMaker& make)
    : config_(config),
      decay_(make(prefix + names.decay, config.decay_shape.empty() ? Shape{config.params.heads} : config.decay_shape)),
      step_(make(prefix + names.step, {config.decays()})) {
  const auto add = [&](const std::string& name, int64_t width) {
    convs_.emplace_back(prefix + name, width, config.taps, config.conv_bias, make);
  };
  NIBBLE_CHECK(names.conv_parts.empty() || !config.value_first, "convolutions of q, k and v");
  if (names.conv_parts.empty()) {
    add(names.conv, 2 * config.keys() + config.values());
  } else {
    for (size_t i = 0; i < 3; ++i) add(names.conv_parts.at(i), i == 2 ? config.values() : config.keys());
  }
  if (config.skip) skip_ = make(prefix + names.skip, {config.params.heads});
  if (config.norm) {
    norm_ = make(prefix + names.norm + ".weight", {config.one_norm_weight ? config.norm->group : config.values()});
  }
}

bool LinearAttention::has_trainable() const {
  const auto trains = [](const CausalConv& conv) { return conv.has_trainable(); };
  return std::any_of(convs_.begin(), convs_.end(), trains) || decay_->trainable || step_->trainable ||
         (skip_ && skip_->trainable) || (norm_ && norm_->trainable);
}

std::unique_ptr<MixerCache> LinearAttention::make_cache(int64_t sequences, MemoryPool& pool) const {
  const int64_t state = config_.params.heads * config_.params.key_size * config_.params.value_size;
  std::vector<int64_t> sizes;
  for (const CausalConv& conv : convs_) sizes.push_back(conv.state_size());
  sizes.push_back(state);
  return std::make_unique<RecurrentCache>(sequences, sizes, pool);
}

// Rows of length 1 are those of an RMS norm whose weight is one over the root of their size.
Tensor LinearAttention::unit_weight(const StepContext& step) const {
  const int64_t size = config_.params.key_size;
  const float weight = 1 / std::sqrt(static_cast<float>(size));
  return Tensor::from<float>(step.pool(), {size}, std::vector<float>(static_cast<size_t>(size), weight));
}

void LinearAttention::normalize(Tensor& rows, Tensor& inverse, const StepContext& step) const {
  const int64_t size = config_.params.key_size;
  const Tensor from = rows.reshape({rows.numel() / size, size});
  Tensor result = like(from, DType::f32, step);
  inverse = Tensor::empty(step.pool(), {from.dim(0)}, DType::f32, "norm statistics");
  ops::rms_norm_forward(from, unit_weight(step), kUnitEps / static_cast<float>(size), 0, result, inverse);
  rows = result.reshape(rows.shape());
}

int64_t LinearAttention::conv_width(size_t i) const {
  if (convs_.size() == 1) return 2 * config_.keys() + config_.values();
  return i == 2 ? config_.values() : config_.keys();
}

void LinearAttention::convolve(const Tensor& x, const LayerContext& context, const StepContext& step,
                               RecurrentCache* cache, Tensor& y) const {
  int64_t begin = 0;
  for (size_t i = 0; i < convs_.size(); begin += conv_width(i++)) {
    std::optional<ops::RecurrentState> state;
    if (cache) state = cache->state(i);
    if (convs_.size() == 1) return convs_[i].forward(x, context.spans, state ? &*state : nullptr, y);
    const Shape shape = {x.dim(0), conv_width(i)};
    Tensor in = Tensor::empty(step.pool(), shape, x.dtype(), "linear attention");
    Tensor out = Tensor::empty(step.pool(), shape, y.dtype(), "linear attention");
    ops::copy_columns_out(x, begin, in);
    convs_[i].forward(in, context.spans, state ? &*state : nullptr, out);
    ops::copy_columns_in(out, begin, y);
  }
}

void LinearAttention::convolve_backward(const Tensor& dy, const Tensor& x, const LayerContext& context,
                                        const StepContext& step, Tensor& dx) {
  int64_t begin = 0;
  for (size_t i = 0; i < convs_.size(); begin += conv_width(i++)) {
    if (convs_.size() == 1) return convs_[i].backward(dy, x, context.spans, dx);
    const auto part = [&](const Tensor& all) {
      return Tensor::empty(step.pool(), {x.dim(0), conv_width(i)}, all.dtype(), "linear attention");
    };
    Tensor in = part(x), din = part(dx), dout = part(dy);
    ops::copy_columns_out(x, begin, in);
    ops::copy_columns_out(dy, begin, dout);
    convs_[i].backward(dout, in, context.spans, din);
    ops::copy_columns_in(din, begin, dx);
  }
}

LinearAttention::Pieces LinearAttention::prepare(const Inputs& in, const LayerContext& context, const StepContext& step,
                                                 RecurrentCache* cache) const {
  Pieces result;
  result.convolved = like(in.mixed, DType::f32, step);
  convolve(in.mixed, context, step, cache, result.convolved);
  Tensor active = like(in.mixed, DType::f32, step);
  ops::activation_forward(config_.activation, result.convolved, active);
  const auto take = [&](int64_t begin, int64_t columns) { return columns_of(active, begin, columns, step); };
  const int64_t keys = config_.keys(), values = config_.values();
  result.q = take(config_.value_first ? values + keys : 0, keys);
  result.k = take(config_.value_first ? values : keys, keys);
  result.v = take(config_.value_first ? 0 : 2 * keys, values);
  if (config_.params.delta) {
    result.q_raw = result.q;
    result.k_raw = result.k;
    normalize(result.q, result.q_inverse, step);
    normalize(result.k, result.k_inverse, step);
  }
  result.step = like(in.step, DType::f32, step);
  result.log_decay = like(in.step, DType::f32, step);
  ops::time_step_forward(in.step, step_->value, decay_->value, config_.limits, result.step, result.log_decay);
  result.beta = result.step;
  if (config_.params.delta) {
    result.beta = like(in.beta, DType::f32, step);
    ops::activation_forward(ops::Activation::sigmoid, in_dtype(in.beta, DType::f32, step), result.beta);
    if (config_.beta_scale != 1) ops::scale(result.beta, config_.beta_scale);
  }
  return result;
}

Tensor LinearAttention::finish(const Tensor& out, const Tensor& gate, const StepContext& step) const {
  Tensor y = like(gate, gate.dtype(), step);
  if (config_.norm) {
    ops::gated_norm_forward(out, gate, norm_->value, *config_.norm, y);
    return y;
  }
  Tensor wide = like(out, DType::f32, step);
  ops::gated_forward(ops::Activation::silu, in_dtype(gate, DType::f32, step), out, wide);
  return in_dtype(wide, gate.dtype(), step);
}

Tensor LinearAttention::output(const Saved& saved, const StepContext& step) const {
  return finish(saved.out, saved.in.gate, step);
}

Tensor LinearAttention::forward(const Inputs& in, const LayerContext& context, const StepContext& step, Saved* saved,
                                MixerCache* cache) const {
  auto* states = cache ? &dynamic_cast<RecurrentCache&>(*cache) : nullptr;
  if (states) states->begin(context);
  Tensor out = Tensor::empty(step.pool(), in.gate.shape(), DType::f32, "linear attention");
  {
    const Pieces pieces = prepare(in, context, step, states);
    std::optional<ops::RecurrentState> state;
    if (states) state = states->state(convs_.size());
    ops::linear_attention_forward(pieces.q, pieces.k, pieces.v, pieces.log_decay, pieces.beta, skip(), context.spans,
                                  config_.params, state ? &*state : nullptr, out);
  }
  if (saved) *saved = {in, out};
  return finish(out, in.gate, step);
}

void LinearAttention::finish_backward(const Tensor& dy, const Saved& saved, const StepContext& step, Tensor& dout,
                                      Tensor& dgate) {
  if (config_.norm) {
    return ops::gated_norm_backward(dy, saved.out, saved.in.gate, norm_->value, *config_.norm, dout, dgate,
                                    norm_->gradient);
  }
  Tensor wide = like(dgate, DType::f32, step), none;
  ops::gated_backward(ops::Activation::silu, in_dtype(dy, DType::f32, step), in_dtype(saved.in.gate, DType::f32, step),
                      saved.out, wide, dout, none);
  ops::cast(wide, dgate);
}

LinearAttention::Inputs LinearAttention::backward(const Tensor& dy, const LayerContext& context,
                                                  const StepContext& step, const Saved& saved) {
  const DType narrow = step.compute_dtype;
  Inputs d{
      like(saved.in.mixed, narrow, step), like(saved.in.gate, narrow, step), like(saved.in.step, narrow, step), {}};
  const Pieces pieces = prepare(saved.in, context, step, nullptr);
  const auto wide = [&](const Tensor& x) { return like(x, DType::f32, step); };
  Tensor dout = wide(saved.out), dq = wide(pieces.q), dk = wide(pieces.k), dv = wide(pieces.v);
  Tensor dlog_decay = wide(pieces.log_decay), dbeta = wide(pieces.beta), none;
  finish_backward(dy, saved, step, dout, d.gate);
  ops::linear_attention_backward(dout, pieces.q, pieces.k, pieces.v, pieces.log_decay, pieces.beta, skip(),
                                 context.spans, config_.params, dq, dk, dv, dlog_decay, dbeta,
                                 skip_ ? skip_->gradient : none);
  if (config_.params.delta) {
    const Tensor raw = in_dtype(saved.in.beta, DType::f32, step);
    Tensor draw = wide(raw);
    if (config_.beta_scale != 1) ops::scale(dbeta, config_.beta_scale);
    ops::activation_backward(ops::Activation::sigmoid, dbeta, raw, draw);
    d.beta = in_dtype(draw, narrow, step);
  }
  ops::time_step_backward(config_.params.delta ? none : dbeta, dlog_decay, saved.in.step, step_->value, decay_->value,
                          config_.limits, d.step, step_->gradient, decay_->gradient);

  Tensor dconvolved = wide(pieces.convolved);
  const auto put = [&](const Tensor& gradient, const Tensor& raw, const Tensor& inverse, int64_t begin) {
    if (!raw) return ops::copy_columns_in(gradient, begin, dconvolved);
    const Shape rows = {inverse.numel(), config_.params.key_size};
    Tensor draw = Tensor::zeros(step.pool(), rows, DType::f32, "linear attention");
    ops::rms_norm_backward(gradient.reshape(rows), raw.reshape(rows), unit_weight(step), 0, inverse, draw, none);
    ops::copy_columns_in(draw.reshape(raw.shape()), begin, dconvolved);
  };
  const int64_t keys = config_.keys(), values = config_.values();
  put(dq, pieces.q_raw, pieces.q_inverse, config_.value_first ? values + keys : 0);
  put(dk, pieces.k_raw, pieces.k_inverse, config_.value_first ? values : keys);
  put(dv, {}, {}, config_.value_first ? 0 : 2 * keys);
  ops::activation_backward(config_.activation, dconvolved, pieces.convolved, dconvolved);
  convolve_backward(dconvolved, saved.in.mixed, context, step, d.mixed);
  return d;
}

void LinearAttention::visit(const ParameterVisitor& visitor) {
  for (CausalConv& conv : convs_) conv.visit(visitor);
  for (const std::shared_ptr<Parameter>* parameter : {&step_, &decay_, &skip_, &norm_}) {
    if (*parameter) visitor(**parameter);
  }
}

}  // namespace nibble
