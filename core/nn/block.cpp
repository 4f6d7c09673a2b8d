#include "nibble/core/nn/block.h"

#include "nibble/core/nn/layer_sharding.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/residual.h"

namespace nibble {

namespace {

std::optional<Norm> make_norm(const std::string& prefix, const std::string& name, const BlockConfig& config,
                              const ParameterMaker& make) {
  if (name.empty()) return std::nullopt;
  return std::make_optional<Norm>(prefix + name, config.width, config.norm, make);
}

bool trainable(const std::optional<Norm>& norm) { return norm && norm->has_trainable(); }

// With shards of the weights a sublayer gives one term of a sum.
void all_reduce(const LayerContext& context, std::string_view what, Tensor& values) {
  if (context.sharding) context.sharding->all_reduce(what, values);
}

// Terms are added before they are rounded to the compute dtype.
DType output_dtype(const LayerContext& context, const StepContext& step) {
  return context.sharding ? DType::f32 : step.compute_dtype;
}

// What a sublayer computes on: the norm of the residual stream, or the stream itself.
Tensor sublayer_input(const std::optional<Norm>& norm, const Tensor& x, const StepContext& step, NormSaved* saved) {
  if (!norm) return in_compute_dtype(x, step);
  Tensor y = Tensor::empty(step.pool(), x.shape(), step.compute_dtype, "norm");
  norm->forward(x, y, step, saved);
  return y;
}

// Puts what sublayer_input gave into what the sublayer has kept, if it was left out.
void restore_input(bool dropped, const std::optional<Norm>& norm, const NormSaved& norm_saved, const StepContext& step,
                   SublayerSaved& saved) {
  if (!dropped) return;
  Tensor y = Tensor::empty(step.pool(), norm_saved.x.shape(), step.compute_dtype, "norm");
  norm->forward(norm_saved.x, y, step, nullptr);
  saved.set_input(y);
}

void sublayer_input_backward(std::optional<Norm>& norm, const Tensor& dinput, const StepContext& step,
                             NormSaved&& saved, Tensor& gradient) {
  if (norm) {
    norm->backward(dinput, step, std::move(saved), gradient);
  } else {
    ops::add(dinput, gradient);
  }
}

// sum = x + run(), through the norm of its output where the family has one.
template <typename Run>
void add_sublayer(const std::optional<Norm>& post_norm, float scale, const LayerContext& context,
                  const StepContext& step, NormSaved* saved, const Tensor& x, Tensor& sum, const Run& run) {
  const DType dtype = post_norm ? DType::f32 : output_dtype(context, step);
  Tensor y = Tensor::empty(step.pool(), x.shape(), dtype, "layer output");
  run(y);
  all_reduce(context, "sum layer outputs", y);
  if (!post_norm) return ops::add_residual(x, y, scale, sum);
  Tensor normed = Tensor::empty(step.pool(), x.shape(), DType::f32, "norm");
  post_norm->forward(y, normed, step, saved);
  ops::add_residual(x, normed, scale, sum);
}

// Gradient of what a sublayer wrote, in the compute dtype.
Tensor sublayer_output_gradient(std::optional<Norm>& post_norm, float scale, const Tensor& gradient,
                                const StepContext& step, NormSaved&& saved) {
  Tensor scaled = gradient;
  if (scale != 1) {
    scaled = gradient.clone(step.pool());
    ops::scale(scaled, scale);
  }
  if (!post_norm) return in_compute_dtype(scaled, step);
  Tensor dy = Tensor::zeros(step.pool(), gradient.shape(), DType::f32, "norm gradient");
  post_norm->backward(scaled, step, std::move(saved), dy);
  return in_compute_dtype(dy, step);
}

}  // namespace

void BlockSaved::visit(const TensorVisitor& visitor) {
  for (NormSaved* norm : {&attention_norm, &post_attention_norm, &mlp_norm, &post_mlp_norm}) norm->visit(visitor);
  for (auto* sublayer : {&mixer, &feed_forward, &layer_input, &streams}) {
    if (*sublayer) (*sublayer)->visit(visitor);
  }
}

Block::Block(const std::string& prefix, const NormNames& names, const BlockConfig& config, std::unique_ptr<Mixer> mixer,
             std::unique_ptr<FeedForward> feed_forward, const ParameterMaker& make,
             std::optional<LayerInput> layer_input, std::optional<AltUp> alt_up)
    : config_(config),
      attention_norm_(make_norm(prefix, names.attention_norm, config, make)),
      mixer_(std::move(mixer)),
      post_attention_norm_(make_norm(prefix, names.post_attention_norm, config, make)),
      mlp_norm_(make_norm(prefix, names.mlp_norm, config, make)),
      feed_forward_(std::move(feed_forward)),
      post_mlp_norm_(make_norm(prefix, names.post_mlp_norm, config, make)),
      layer_input_(std::move(layer_input)),
      alt_up_(std::move(alt_up)) {
  const bool plain = attention_norm_ && mlp_norm_ && !post_attention_norm_ && !post_mlp_norm_ &&
                     !config.parallel_residual && config.residual_scale == 1 && config.mixed_scale == 1 &&
                     !layer_input_ && !alt_up_;
  NIBBLE_CHECK(config.norm_place == NormPlace::input || plain, "norms in a place that goes with nothing else");
  const bool whole = mixer_ && feed_forward_;
  NIBBLE_CHECK(config.mixed_scale == 1 || (whole && !config.parallel_residual), "a stream between two sublayers");
  NIBBLE_CHECK(whole || ((mixer_ || feed_forward_) && config.norm_place == NormPlace::input &&
                         !config.parallel_residual && (mixer_ || !attention_norm_) && (feed_forward_ || !mlp_norm_)),
               "a layer of one sublayer is plain");
}

Tensor Block::forward(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                      MixerCache* cache) {
  return alt_up_ ? run_streams(x, context, step, saved, cache) : run(x, context, step, saved, cache, true);
}

Tensor Block::run_streams(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                          MixerCache* cache) {
  std::unique_ptr<SublayerSaved>* kept = saved ? &saved->streams : nullptr;
  const Tensor predicted = alt_up_->predict(x, step, kept);
  const Tensor active = alt_up_->active(predicted).clone(step.pool());  // may be kept without the others
  return alt_up_->correct(predicted, run(active, context, step, saved, cache, true), context, step, kept);
}

BlockSaved Block::recompute(const Tensor& x, const LayerContext& context, const StepContext& step) {
  BlockSaved saved;
  if (alt_up_) {
    run_streams(x, context, step, &saved, nullptr);
  } else {
    run(x, context, step, &saved, nullptr, false);
  }
  return saved;
}

void Block::mix(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                std::unique_ptr<SublayerSaved>* saved, MixerCache* cache) {
  cache ? mixer_->forward_cached(x, context, step, y, *cache) : mixer_->forward(x, context, step, y, saved);
}

Tensor Block::run(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                  MixerCache* cache, bool output_wanted) {
  if (config_.norm_place != NormPlace::input) return run_around(x, context, step, saved, cache, output_wanted);
  BlockSaved none;
  BlockSaved& kept = saved ? *saved : none;
  const auto keep = [&](auto& part) { return saved ? &part : nullptr; };
  const float scale = config_.residual_scale;

  Tensor attention_input;
  if (mixer_) attention_input = sublayer_input(attention_norm_, x, step, keep(kept.attention_norm));
  const auto stream = [&] { return Tensor::empty(step.pool(), x.shape(), DType::f32, "residual stream"); };
  Tensor middle;
  const bool middle_wanted = output_wanted || (!config_.parallel_residual && feed_forward_);
  if (!mixer_) {
    middle = x;
  } else if (middle_wanted || post_attention_norm_ || post_mlp_norm_) {
    middle = stream();
    add_sublayer(post_attention_norm_, scale, context, step, keep(kept.post_attention_norm), x, middle,
                 [&](Tensor& y) { mix(attention_input, context, step, y, keep(kept.mixer), cache); });
    if (config_.mixed_scale != 1) ops::scale(middle, config_.mixed_scale);
  } else {
    mixer_->forward_save_only(attention_input, context, output_dtype(context, step), step, kept.mixer);
  }

  if (!feed_forward_) {
    if (saved) drop_inputs(*saved);
    return middle;
  }

  Tensor mlp_input = attention_input;
  if (mlp_norm_ || !config_.parallel_residual) {
    mlp_input = sublayer_input(mlp_norm_, config_.parallel_residual ? x : middle, step, keep(kept.mlp_norm));
  }
  Tensor out;
  if (output_wanted || post_mlp_norm_ || layer_input_) {
    const bool middle_is_kept = !mixer_ || (saved && !config_.parallel_residual);
    out = middle_is_kept ? stream() : middle;
    add_sublayer(post_mlp_norm_, scale, context, step, keep(kept.post_mlp_norm), middle, out,
                 [&](Tensor& y) { feed_forward_->forward(mlp_input, context, step, y, keep(kept.feed_forward)); });
  } else {
    feed_forward_->forward_save_only(mlp_input, context, output_dtype(context, step), step, kept.feed_forward);
  }
  if (layer_input_) layer_input_->forward(out, context, step, keep(kept.layer_input));
  if (saved) drop_inputs(*saved);
  return out;
}

void Block::drop_inputs(BlockSaved& saved) const {
  const auto drop_input = [](SublayerSaved& of) {
    const bool had = of.has_input();
    of.set_input({});
    return had;
  };
  if (mixer_ && !attention_norm_) return;
  if (mixer_) saved.mixer_input_dropped = drop_input(*saved.mixer);
  if (!feed_forward_ || (!mlp_norm_ && !config_.parallel_residual)) return;
  saved.feed_forward_input_dropped = drop_input(*saved.feed_forward);
}

void Block::backward(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                     bool input_gradient) {
  if (!alt_up_) return backward_one(gradient, context, step, std::move(saved), input_gradient);
  const std::unique_ptr<SublayerSaved> streams = std::move(saved.streams);
  Tensor dpredicted, dout;
  alt_up_->correct_backward(gradient, context, step, *streams, dpredicted, dout);
  const bool predicts = input_gradient || alt_up_->has_trainable();
  backward_one(dout, context, step, std::move(saved), predicts);
  if (!predicts) return;
  Tensor active = alt_up_->active(dpredicted);
  ops::add(dout, active);
  gradient = alt_up_->predict_backward(dpredicted, step, *streams);
}

void Block::backward_one(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                         bool input_gradient) {
  if (config_.norm_place != NormPlace::input) {
    return backward_around(gradient, context, step, std::move(saved), input_gradient);
  }
  const float scale = config_.residual_scale;
  const bool attention_input_gradient = input_gradient || trainable(attention_norm_);
  const bool attention_gradient =
      attention_input_gradient || (mixer_ && mixer_->has_trainable()) || trainable(post_attention_norm_);
  const bool shared_norm = config_.parallel_residual && !mlp_norm_;
  const bool above_mlp = config_.parallel_residual ? attention_input_gradient : attention_gradient;

  if (layer_input_) layer_input_->backward(gradient, context, step, *saved.layer_input);
  Tensor mlp_dinput;
  const bool mlp_input_gradient = above_mlp || trainable(mlp_norm_);
  if (feed_forward_) {
    restore_input(saved.feed_forward_input_dropped, mlp_norm_ ? mlp_norm_ : attention_norm_,
                  mlp_norm_ ? saved.mlp_norm : saved.attention_norm, step, *saved.feed_forward);
    feed_forward_->backward(
        sublayer_output_gradient(post_mlp_norm_, scale, gradient, step, std::move(saved.post_mlp_norm)), context, step,
        *saved.feed_forward, mlp_input_gradient ? &mlp_dinput : nullptr);
    saved.feed_forward.reset();
  }
  if (mlp_dinput && !shared_norm) all_reduce(context, "sum layer gradients", mlp_dinput);
  // The sequential mixer sees the gradient after the norm of the feed-forward, the parallel one the output's.
  const auto mlp_norm_backward = [&] {
    if (mlp_dinput) sublayer_input_backward(mlp_norm_, mlp_dinput, step, std::move(saved.mlp_norm), gradient);
    mlp_dinput = {};
  };
  if (!config_.parallel_residual) mlp_norm_backward();
  if (config_.mixed_scale != 1) ops::scale(gradient, config_.mixed_scale);

  if (attention_gradient && mixer_) {
    Tensor dinput;
    restore_input(saved.mixer_input_dropped, attention_norm_, saved.attention_norm, step, *saved.mixer);
    mixer_->backward(
        sublayer_output_gradient(post_attention_norm_, scale, gradient, step, std::move(saved.post_attention_norm)),
        context, step, *saved.mixer, attention_input_gradient ? &dinput : nullptr);
    if (shared_norm && dinput) ops::add(mlp_dinput, dinput);
    if (dinput) all_reduce(context, "sum layer gradients", dinput);
    if (dinput) sublayer_input_backward(attention_norm_, dinput, step, std::move(saved.attention_norm), gradient);
  }
  if (config_.parallel_residual && !shared_norm) mlp_norm_backward();
}

Tensor Block::run_around(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                         MixerCache* cache, bool output_wanted) {
  BlockSaved none;
  BlockSaved& kept = saved ? *saved : none;
  const auto keep = [&](auto& part) { return saved ? &part : nullptr; };
  const bool first = config_.norm_place == NormPlace::stream;
  const auto normed = [&](Norm& norm, NormSaved* norm_saved, const Tensor& from) {
    Tensor result = Tensor::empty(step.pool(), x.shape(), DType::f32, "norm");
    norm.forward(from, result, step, norm_saved);
    return result;
  };
  const auto sublayer = [&](Norm& norm, NormSaved* norm_saved, const Tensor& in, const auto& run) {
    const Tensor stream = first ? normed(norm, norm_saved, in) : in;
    Tensor y = Tensor::empty(step.pool(), x.shape(), output_dtype(context, step), "layer output");
    run(in_compute_dtype(stream, step), y);
    all_reduce(context, "sum layer outputs", y);
    Tensor sum = stream.clone(step.pool());
    ops::add(y, sum);
    return first ? sum : normed(norm, norm_saved, sum);
  };
  const Tensor middle = sublayer(*attention_norm_, keep(kept.attention_norm), x, [&](const Tensor& in, Tensor& y) {
    mix(in, context, step, y, keep(kept.mixer), cache);
  });
  if (first && !output_wanted) {
    const Tensor stream = normed(*mlp_norm_, keep(kept.mlp_norm), middle);
    feed_forward_->forward_save_only(in_compute_dtype(stream, step), context, output_dtype(context, step), step,
                                     kept.feed_forward);
    return {};
  }
  return sublayer(*mlp_norm_, keep(kept.mlp_norm), middle, [&](const Tensor& in, Tensor& y) {
    feed_forward_->forward(in, context, step, y, keep(kept.feed_forward));
  });
}

void Block::backward_around(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                            bool input_gradient) {
  // `gradient` goes from a sublayer's output to its input; without `below` the sublayer's own parameters are the end of
  // it.
  const auto sublayer = [&](Norm& norm, NormSaved& norm_saved, bool below, const auto& run) {
    const auto through_norm = [&] {
      Tensor dx = Tensor::zeros(step.pool(), gradient.shape(), DType::f32, "norm gradient");
      norm.backward(gradient, step, std::move(norm_saved), dx);
      gradient = dx;
    };
    const bool first = config_.norm_place == NormPlace::stream;
    if (!first) through_norm();
    const bool wanted = below || (first && norm.has_trainable());
    Tensor dinput = wanted ? Tensor::empty(step.pool(), gradient.shape(), DType::f32, "input gradient") : Tensor();
    run(in_compute_dtype(gradient, step), wanted ? &dinput : nullptr);
    if (!wanted) return;
    all_reduce(context, "sum layer gradients", dinput);
    Tensor sum = gradient.clone(step.pool());
    ops::add(dinput, sum);
    gradient = sum;
    if (first) through_norm();
  };
  const bool attention_gradient = input_gradient || mixer_->has_trainable() || trainable(attention_norm_);
  sublayer(*mlp_norm_, saved.mlp_norm, attention_gradient,
           [&](const Tensor& dy, Tensor* dx) { feed_forward_->backward(dy, context, step, *saved.feed_forward, dx); });
  if (!attention_gradient) return;
  sublayer(*attention_norm_, saved.attention_norm, input_gradient,
           [&](const Tensor& dy, Tensor* dx) { mixer_->backward(dy, context, step, *saved.mixer, dx); });
}

}  // namespace nibble
