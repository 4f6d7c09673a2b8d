#include "nibble/core/nn/mixers/short_conv.h"

#include "nibble/core/nn/mixers/recurrent_cache.h"
#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/columns.h"

namespace nibble {

namespace {

Tensor columns_like(const Tensor& x, const StepContext& step) {
  return Tensor::empty(step.pool(), x.shape(), x.dtype(), "short convolution");
}

}  // namespace

// All that follows from the first projection is computed again.
struct ShortConv::Saved final : SavedMembers<Saved> {
  LinearSaved input, output;
  Tensor projected;  // [T, 3 D]

  void each(const auto& use) { use(input, output, projected); }
  void inputs(const auto& use) { use(input.x); }
};

ShortConv::ShortConv(const std::string& prefix, const ShortConvConfig& config, const Makers& makers)
    : config_(config),
      input_(makers.make_linear(prefix + "in_proj", 3 * config.width, config.width, config.bias)),
      conv_(prefix + "conv", config.width, config.taps, config.bias, makers.parameter),
      output_(makers.make_linear(prefix + "out_proj", config.width, config.width, config.bias)) {}

ShortConv::Parts ShortConv::convolve(const Tensor& projected, const LayerContext& context, const StepContext& step,
                                     ops::RecurrentState* state) const {
  Parts parts;
  int64_t column = 0;
  for (Tensor* part : {&parts.before, &parts.after, &parts.x}) {
    *part = columns_of(projected, column, config_.width, step);
    column += config_.width;
  }
  parts.gated = columns_like(parts.x, step);
  ops::gated_forward(ops::Activation::identity, parts.before, parts.x, parts.gated);
  parts.convolved = columns_like(parts.x, step);
  conv_.forward(parts.gated, context.spans, state, parts.convolved);
  return parts;
}

Tensor ShortConv::gate(const Parts& parts, const StepContext& step) const {
  Tensor y = columns_like(parts.x, step);
  ops::gated_forward(ops::Activation::identity, parts.after, parts.convolved, y);
  return y;
}

Tensor ShortConv::mix(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
                      MixerCache* cache) {
  Tensor projected = Tensor::empty(step.pool(), {x.dim(0), 3 * config_.width}, step.compute_dtype, "short convolution");
  input_.forward(x, projected, step, saved ? &saved->input : nullptr);
  if (saved) saved->projected = projected;
  if (!cache) return gate(convolve(projected, context, step, nullptr), step);
  auto& states = dynamic_cast<RecurrentCache&>(*cache);
  states.begin(context);
  ops::RecurrentState state = states.state(0);
  return gate(convolve(projected, context, step, &state), step);
}

void ShortConv::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                        std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  output_.forward(mix(x, context, step, kept, nullptr), y, step, kept ? &kept->output : nullptr);
  if (kept) kept->output.x = {};
}

void ShortConv::forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                                  std::unique_ptr<SublayerSaved>& saved) {
  Saved& kept = *new_saved<Saved>(&saved);
  output_.forward_save_only(mix(x, context, step, &kept, nullptr), dtype, step, kept.output);
  kept.output.x = {};
}

void ShortConv::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                               MixerCache& cache) {
  output_.forward(mix(x, context, step, nullptr, &cache), y, step, nullptr);
}

void ShortConv::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                         Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  const Parts parts = convolve(saved.projected, context, step, nullptr);
  if (output_.has_trainable()) saved.output.x = gate(parts, step);
  if (!dx && !trains_beside(&output_)) {
    return output_.backward(dy, step, std::move(saved.output), nullptr, false);
  }
  Tensor dproduct = columns_like(parts.x, step), dbefore = columns_like(parts.x, step),
         dafter = columns_like(parts.x, step);
  Tensor dx_part = columns_like(parts.x, step), dconvolved = columns_like(parts.x, step),
         dgated = columns_like(parts.x, step), none;
  output_.backward(dy, step, std::move(saved.output), &dproduct, false);
  saved.output.x = {};
  ops::gated_backward(ops::Activation::identity, dproduct, parts.after, parts.convolved, dafter, dconvolved, none);
  conv_.backward(dconvolved, parts.gated, context.spans, dgated);
  ops::gated_backward(ops::Activation::identity, dgated, parts.before, parts.x, dbefore, dx_part, none);
  Tensor gradient = columns_like(saved.projected, step);
  ops::copy_columns_in(dbefore, 0, gradient);
  ops::copy_columns_in(dafter, config_.width, gradient);
  ops::copy_columns_in(dx_part, 2 * config_.width, gradient);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  input_.backward(gradient, step, std::move(saved.input), dx, false);
}

std::unique_ptr<MixerCache> ShortConv::make_cache(int64_t sequences, DType, MemoryPool& pool) const {
  return std::make_unique<RecurrentCache>(sequences, std::vector<int64_t>{conv_.state_size()}, pool);
}

}  // namespace nibble
