#include "nibble/core/nn/mixers/recurrent/mamba.h"

#include <array>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/recurrent/time_step.h"

namespace nibble {

namespace {

Tensor make(const Shape& shape, DType dtype, const StepContext& step) {
  return Tensor::empty(step.pool(), shape, dtype, "state space");
}

Linear make_dense(const std::string& name, int64_t out, int64_t in, const Makers& makers) {
  return {name, std::make_unique<DenseWeight>(makers.parameter(name + ".weight", {out, in})), nullptr};
}

}  // namespace

// What of the projections and the convolution attention sees, f32.
struct Mamba::Pieces {
  Tensor x, gate;            // of the input's projection, in the compute dtype
  Tensor convolved, active;  // [T, C], before and after the activation
  Tensor B, C;               // [T, N]
  Tensor raw_step, step, log_decay;
};

struct Mamba::Saved final : SavedMembers<Saved> {
  LinearSaved input, low, step, output;
  std::array<NormSaved, 3> norms;
  Tensor projected;  // [T, 2 C]
  Tensor out;        // [T, C] f32, of the attention

  void each(const auto& use) { use(input, low, step, output, norms, projected, out); }
  void inputs(const auto& use) { use(input.x); }
};

Mamba::Mamba(const std::string& prefix, const MambaConfig& config, const Makers& makers)
    : config_(config),
      input_(makers.make_linear(prefix + "in_proj", 2 * config.channels, config.width, config.bias)),
      low_(makers.make_linear(prefix + "x_proj", config.step_rank + 2 * config.state_size, config.channels, false)),
      step_(make_dense(prefix + "dt_proj", config.channels, config.step_rank, makers)),
      output_(makers.make_linear(prefix + "out_proj", config.width, config.channels, config.bias)),
      conv_(prefix + "conv1d", config.channels, config.taps, config.conv_bias, makers.parameter),
      step_bias_(makers.parameter(prefix + "dt_proj.bias", {config.channels})),
      decay_(makers.parameter(prefix + "A_log", {config.channels, config.state_size})),
      skip_(makers.parameter(prefix + "D", {config.channels})) {
  if (!config.norm) return;
  const char* names[] = {"dt_layernorm", "b_layernorm", "c_layernorm"};
  for (size_t i = 0; i < 3; ++i) {
    norms_[i].emplace(prefix + names[i], i == 0 ? config.step_rank : config.state_size, *config.norm, makers.parameter);
  }
}

// Every channel is a head of one value; queries and keys are C and B, which all heads share.
ops::LinearAttentionParams Mamba::params() const {
  return {.heads = config_.channels,
          .key_heads = 1,
          .key_size = config_.state_size,
          .value_size = 1,
          .channel_decay = true,
          .log_rates = decay_->value,
          .dlog_rates = decay_->gradient};
}

Mamba::Pieces Mamba::prepare(const Tensor& projected, const LayerContext& context, const StepContext& step,
                             RecurrentCache* cache, Saved* saved) {
  const int64_t channels = config_.channels, tokens = projected.dim(0);
  Pieces result{columns_of(projected, 0, channels, step),
                columns_of(projected, channels, channels, step),
                {},
                {},
                {},
                {},
                {},
                {},
                {}};
  result.convolved = make({tokens, channels}, DType::f32, step);
  std::optional<ops::RecurrentState> state;
  if (cache) state = cache->state(0);
  conv_.forward(result.x, context.spans, state ? &*state : nullptr, result.convolved);
  result.active = make(result.convolved.shape(), DType::f32, step);
  ops::activation_forward(config_.activation, result.convolved, result.active);

  Tensor low = make({tokens, low_.out_features()}, DType::f32, step);
  low_.forward(in_compute_dtype(result.active, step), low, step, saved ? &saved->low : nullptr);
  std::array<Tensor, 3> parts;
  for (int64_t i = 0, begin = 0; i < 3; ++i) {
    const auto part = static_cast<size_t>(i);
    const int64_t count = i == 0 ? config_.step_rank : config_.state_size;
    parts[part] = columns_of(low, begin, count, step);
    begin += count;
    if (!norms_[part]) continue;
    Tensor normed = make(parts[part].shape(), DType::f32, step);
    norms_[part]->forward(parts[part], normed, step, saved ? &saved->norms[part] : nullptr);
    parts[part] = normed;
  }
  result.B = parts[1];
  result.C = parts[2];
  result.raw_step = make({tokens, channels}, DType::f32, step);
  step_.forward(in_compute_dtype(parts[0], step), result.raw_step, step, saved ? &saved->step : nullptr);
  result.step = make(result.raw_step.shape(), DType::f32, step);
  result.log_decay = make(result.raw_step.shape(), DType::f32, step);
  const Tensor zero = Tensor::zeros(step.pool(), {1}, DType::f32, "state space");  // log_decay = -step
  ops::time_step_forward(result.raw_step, step_bias_->value, zero, ops::kAnyStep, result.step, result.log_decay);
  return result;
}

Tensor Mamba::gated(const Tensor& out, const Tensor& gate, const StepContext& step) const {
  Tensor y = make(out.shape(), DType::f32, step);
  ops::gated_forward(ops::Activation::silu, in_dtype(gate, DType::f32, step), out, y);
  return in_compute_dtype(y, step);
}

Tensor Mamba::mix(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
                  RecurrentCache* cache) {
  if (cache) cache->begin(context);
  Tensor projected = make({x.dim(0), input_.out_features()}, step.compute_dtype, step);
  input_.forward(x, projected, step, saved ? &saved->input : nullptr);
  const Pieces of = prepare(projected, context, step, cache, saved);
  Tensor out = make(of.active.shape(), DType::f32, step);
  std::optional<ops::RecurrentState> state;
  if (cache) state = cache->state(1);
  ops::linear_attention_forward(of.C, of.B, of.active, of.log_decay, of.step, skip_->value, context.spans, params(),
                                state ? &*state : nullptr, out);
  if (saved) {
    saved->projected = projected;
    saved->out = out;
  }
  return gated(out, of.gate, step);
}

void Mamba::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                    std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  output_.forward(mix(x, context, step, kept, nullptr), y, step, kept ? &kept->output : nullptr);
}

void Mamba::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                           MixerCache& cache) {
  output_.forward(mix(x, context, step, nullptr, &dynamic_cast<RecurrentCache&>(cache)), y, step, nullptr);
}

void Mamba::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                     Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (!dx && !trains_beside(&output_)) return output_.backward(dy, step, std::move(saved.output), nullptr, false);
  Tensor dgated = make(saved.out.shape(), step.compute_dtype, step);
  output_.backward(dy, step, std::move(saved.output), &dgated, false);
  const Pieces at = prepare(saved.projected, context, step, nullptr, nullptr);
  const auto like = [&](const Tensor& x) { return make(x.shape(), DType::f32, step); };
  Tensor dgate = like(at.gate), dout = like(saved.out), none;
  ops::gated_backward(ops::Activation::silu, in_dtype(dgated, DType::f32, step), in_dtype(at.gate, DType::f32, step),
                      saved.out, dgate, dout, none);

  Tensor dC = like(at.C), dB = like(at.B), dactive = like(at.active), dlog_decay = like(at.step), dstep = like(at.step);
  ops::linear_attention_backward(dout, at.C, at.B, at.active, at.log_decay, at.step, skip_->value, context.spans,
                                 params(), dC, dB, dactive, dlog_decay, dstep, skip_->gradient);
  const Tensor zero = Tensor::zeros(step.pool(), {1}, DType::f32, "state space");
  Tensor draw_step = like(at.raw_step);
  ops::time_step_backward(dstep, dlog_decay, at.raw_step, step_bias_->value, zero, ops::kAnyStep, draw_step,
                          step_bias_->gradient, none);
  Tensor dlow_step = make({dy.dim(0), config_.step_rank}, DType::f32, step);
  step_.backward(in_compute_dtype(draw_step, step), step, std::move(saved.step), &dlow_step, false);

  Tensor dlow = make({dy.dim(0), low_.out_features()}, DType::f32, step);
  int64_t begin = 0;
  const std::array<Tensor, 3> gradients = {dlow_step, dB, dC};
  for (size_t i = 0; i < 3; ++i) {
    Tensor gradient = gradients[i];
    if (norms_[i]) {
      gradient = Tensor::zeros(step.pool(), gradients[i].shape(), DType::f32, "state space");
      norms_[i]->backward(gradients[i], step, std::move(saved.norms[i]), gradient);
    }
    ops::copy_columns_in(gradient, begin, dlow);
    begin += gradient.dim(1);
  }
  low_.backward(in_compute_dtype(dlow, step), step, std::move(saved.low), &dactive, true);

  ops::activation_backward(config_.activation, dactive, at.convolved, dactive);
  Tensor dx_part = make(at.x.shape(), at.x.dtype(), step), gradient = make(saved.projected.shape(), at.x.dtype(), step);
  conv_.backward(dactive, at.x, context.spans, dx_part);
  ops::copy_columns_in(dx_part, 0, gradient);
  ops::copy_columns_in(in_dtype(dgate, at.x.dtype(), step), config_.channels, gradient);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  input_.backward(gradient, step, std::move(saved.input), dx, false);
}

std::unique_ptr<MixerCache> Mamba::make_cache(int64_t sequences, DType, MemoryPool& pool) const {
  const std::vector<int64_t> sizes = {conv_.state_size(), config_.channels * config_.state_size};
  return std::make_unique<RecurrentCache>(sequences, sizes, pool);
}

void Mamba::visit_linears(const std::function<void(Linear&)>& visitor) {
  for (Linear* linear : {&input_, &low_, &output_}) visitor(*linear);
}

}  // namespace nibble
