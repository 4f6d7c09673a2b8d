#include "nibble/core/nn/mixers/linear_attention/linear_attention_mixer.h"

#include <algorithm>

namespace nibble {

// What enters the output projection is computed again from what the attention has kept.
struct LinearAttentionMixer::Saved final : SavedMembers<Saved> {
  std::vector<LinearSaved> projections;
  std::map<size_t, LinearSaved> second;
  LinearSaved output;
  LinearAttention::Saved attention;

  void each(const auto& use) { use(projections, second, output, attention); }
  void inputs(const auto& use) {
    for (LinearSaved& linear : projections) use(linear.x);
  }
};

Tensor LinearAttentionMixer::mix(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
                                 MixerCache* cache) {
  std::vector<Tensor> projected;
  if (saved) saved->projections.resize(projections_.size());
  for (size_t i = 0; i < projections_.size(); ++i) {
    Linear& linear = projections_[i];
    projected.push_back(
        Tensor::empty(step.pool(), {x.dim(0), linear.out_features()}, step.compute_dtype, "projection"));
    linear.forward(x, projected.back(), step, saved ? &saved->projections[i] : nullptr);
    const auto second = second_.find(i);
    if (second == second_.end()) continue;
    Tensor result =
        Tensor::empty(step.pool(), {x.dim(0), second->second.out_features()}, step.compute_dtype, "projection");
    second->second.forward(projected.back(), result, step, saved ? &saved->second[i] : nullptr);
    projected.back() = result;
  }
  return attention_.forward(split(projected, step), context, step, saved ? &saved->attention : nullptr, cache);
}

void LinearAttentionMixer::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                                   std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  output_.forward(mix(x, context, step, kept, nullptr), y, step, kept ? &kept->output : nullptr);
  if (kept) kept->output.x = {};
}

void LinearAttentionMixer::forward_save_only(const Tensor& x, const LayerContext& context, DType dtype,
                                             const StepContext& step, std::unique_ptr<SublayerSaved>& saved) {
  Saved& kept = *new_saved<Saved>(&saved);
  output_.forward_save_only(mix(x, context, step, &kept, nullptr), dtype, step, kept.output);
  kept.output.x = {};
}

void LinearAttentionMixer::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step,
                                          Tensor& y, MixerCache& cache) {
  output_.forward(mix(x, context, step, nullptr, &cache), y, step, nullptr);
}

void LinearAttentionMixer::backward(const Tensor& dy, const LayerContext& context, const StepContext& step,
                                    SublayerSaved& of, Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (output_.has_trainable()) saved.output.x = attention_.output(saved.attention, step);
  if (!dx && !trains_beside(&output_)) {
    return output_.backward(dy, step, std::move(saved.output), nullptr, false);
  }
  Tensor dout = Tensor::empty(step.pool(), saved.attention.out.shape(), step.compute_dtype, "output gradient");
  output_.backward(dy, step, std::move(saved.output), &dout, false);
  saved.output.x = {};
  const std::vector<Tensor> gradients = join(attention_.backward(dout, context, step, saved.attention), step);
  if (dx && !*dx)
    *dx = Tensor::empty(step.pool(), {dy.dim(0), projections_[0].in_features()}, DType::f32, "input gradient");
  for (size_t i = 0; i < projections_.size(); ++i) {
    Tensor gradient = gradients[i];
    if (const auto second = second_.find(i); second != second_.end()) {
      gradient = Tensor::empty(step.pool(), {dy.dim(0), projections_[i].out_features()}, step.compute_dtype,
                               "projection gradient");
      second->second.backward(gradients[i], step, std::move(saved.second[i]), &gradient, false);
    }
    projections_[i].backward(gradient, step, std::move(saved.projections[i]), dx, i > 0);
  }
}

std::unique_ptr<MixerCache> LinearAttentionMixer::make_cache(int64_t sequences, DType, MemoryPool& pool) const {
  return attention_.make_cache(sequences, pool);
}

}  // namespace nibble
