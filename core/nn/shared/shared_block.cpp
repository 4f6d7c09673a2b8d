#include "nibble/core/nn/shared/shared_block.h"

#include <utility>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

struct SharedBlock::Saved final : SavedMembers<Saved> {
  NormSaved attention_norm, mlp_norm, mixer_norm;
  std::unique_ptr<SublayerSaved> attention, mlp, mixer;
  LinearSaved linear;

  void each(const auto& use) { use(attention_norm, attention, mlp_norm, mlp, linear, mixer_norm, mixer); }
  void inputs(const auto& use) { use(); }  // it is kept in two norms' inputs
};

SharedBlock::SharedBlock(const std::string& prefix, const SharedBlockNames& names, const AttentionNames& attention,
                         const MlpNames& mlp, const SharedBlockConfig& config, std::unique_ptr<Mixer> mixer,
                         const Makers& makers)
    : width_(config.mlp.width),
      attention_norm_(prefix + names.block + names.attention_norm, config.attention.width, config.norm,
                      makers.parameter),
      attention_(prefix + names.block, attention, config.attention, makers),
      mlp_norm_(prefix + names.block + names.mlp_norm, width_, config.norm, makers.parameter),
      mlp_(prefix + names.block, mlp, config.mlp, makers),
      linear_(makers.make_linear(prefix + names.linear, width_, width_, false)),
      mixer_norm_(prefix + names.mixer_norm, width_, config.norm, makers.parameter),
      mixer_(std::move(mixer)) {}

Tensor SharedBlock::run(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
                        MixerCache* cache) {
  Saved none;
  Saved& kept = saved ? *saved : none;
  const auto keep = [&](auto& part) { return saved ? &part : nullptr; };
  const auto make = [&](int64_t columns, DType dtype) {
    return Tensor::empty(step.pool(), {x.dim(0), columns}, dtype, "shared block");
  };
  const auto normed = [&](const Norm& norm, const Tensor& from, NormSaved* of) {
    Tensor result = make(from.dim(1), step.compute_dtype);
    norm.forward(from, result, step, of);
    return result;
  };
  NIBBLE_CHECK(context.state && context.state->embeddings, "a shared block needs the embeddings of a pass");
  Tensor sum = in_dtype(x, DType::f32, step);
  Tensor both = make(2 * width_, DType::f32), attended = make(width_, DType::f32);
  ops::copy_columns_in(sum, 0, both);
  ops::copy_columns_in(context.state->embeddings, width_, both);
  const Tensor entering = normed(attention_norm_, both, keep(kept.attention_norm));
  both = {};
  if (cache) {
    attention_.forward_cached(entering, context, step, attended, *cache);
  } else {
    attention_.forward(entering, context, step, attended, keep(kept.attention));
  }
  Tensor result = make(width_, step.compute_dtype), added = make(width_, DType::f32);
  mlp_.forward(normed(mlp_norm_, attended, keep(kept.mlp_norm)), context, step, result, keep(kept.mlp));
  linear_.forward(result, added, step, keep(kept.linear));
  ops::add(sum, added);
  return normed(mixer_norm_, added, keep(kept.mixer_norm));
}

void SharedBlock::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                          std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  mixer_->forward(run(x, context, step, kept, nullptr), context, step, y, kept ? &kept->mixer : nullptr);
}

void SharedBlock::forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                                    std::unique_ptr<SublayerSaved>& saved) {
  Saved& kept = *new_saved<Saved>(&saved);
  mixer_->forward_save_only(run(x, context, step, &kept, nullptr), context, dtype, step, kept.mixer);
}

std::unique_ptr<MixerCache> SharedBlock::make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const {
  auto cache = std::make_unique<PartCaches>();
  cache->parts.push_back(attention_.make_cache(sequences, dtype, pool));
  cache->parts.push_back(mixer_->make_cache(sequences, dtype, pool));
  return cache;
}

void SharedBlock::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                                 MixerCache& of) {
  auto& cache = dynamic_cast<PartCaches&>(of);
  mixer_->forward_cached(run(x, context, step, nullptr, cache.parts[0].get()), context, step, y, *cache.parts[1]);
}

void SharedBlock::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                           Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  const bool shared_trains = attention_norm_.has_trainable() || attention_.has_trainable() ||
                             mlp_norm_.has_trainable() || mlp_.has_trainable() || linear_.has_trainable();
  const auto zeros = [&](int64_t columns) {
    return Tensor::zeros(step.pool(), {dy.dim(0), columns}, DType::f32, "shared block gradient");
  };
  // Gradient of a norm's input.
  const auto through = [&](Norm& norm, Tensor& gradient, NormSaved& kept) {
    Tensor result = zeros(gradient.dim(1));
    norm.backward(gradient, step, std::move(kept), result);
    gradient = {};
    return result;
  };
  Tensor gradient;
  const bool below = dx || shared_trains || mixer_norm_.has_trainable();
  mixer_->backward(dy, context, step, *saved.mixer, below ? &gradient : nullptr);
  saved.mixer.reset();
  if (!below) return;
  const Tensor sum = through(mixer_norm_, gradient, saved.mixer_norm);
  if (!dx && !shared_trains) return;

  Tensor narrow = Tensor::empty(step.pool(), {dy.dim(0), width_}, step.compute_dtype, "shared block gradient");
  linear_.backward(in_compute_dtype(sum, step), step, std::move(saved.linear), &narrow, false);
  mlp_.backward(narrow, context, step, *saved.mlp, &gradient);
  saved.mlp.reset();
  narrow = in_compute_dtype(through(mlp_norm_, gradient, saved.mlp_norm), step);
  attention_.backward(narrow, context, step, *saved.attention, &gradient);
  saved.attention.reset();
  const Tensor both = through(attention_norm_, gradient, saved.attention_norm);
  if (!dx) return;
  const auto add_columns = [&](int64_t begin, Tensor& to) {
    Tensor part = Tensor::empty(step.pool(), to.shape(), DType::f32, "shared block gradient");
    ops::copy_columns_out(both, begin, part);
    ops::add(part, to);
  };
  if (*dx) {
    ops::cast(sum, *dx);
  } else {
    *dx = sum;
  }
  add_columns(0, *dx);
  PassState& state = *context.state;
  if (!state.embeddings_train) return;
  if (!state.embedding_gradient) state.embedding_gradient = zeros(width_);
  add_columns(width_, state.embedding_gradient);
}

}  // namespace nibble
