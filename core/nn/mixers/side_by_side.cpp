#include "nibble/core/nn/mixers/side_by_side.h"

#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

Tensor scaled(const Tensor& x, float factor, const StepContext& step) {
  if (factor == 1) return x;
  Tensor result = x.clone(step.pool());
  ops::scale(result, factor);
  return result;
}

// sum of `parts` terms, each written by term(i, to), into y.
template <typename Term>
void add_terms(size_t parts, Tensor& y, const StepContext& step, const Term& term) {
  Tensor sum = Tensor::zeros(step.pool(), y.shape(), DType::f32, "layer output");
  for (size_t i = 0; i < parts; ++i) term(i, sum);
  ops::cast(sum, y);
}

}  // namespace

// The parts' own input is left out where it is scaled: it is computed again from the one they share.
struct SideBySide::Saved final : SavedMembers<Saved> {
  Tensor x;
  std::vector<std::unique_ptr<SublayerSaved>> parts;

  void each(const auto& use) { use(x, parts); }
  void inputs(const auto& use) { use(x); }
};

void SideBySide::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                         std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  if (kept) kept->parts.resize(parts_.size());
  add_terms(parts_.size(), y, step, [&](size_t i, Tensor& sum) {
    const Part& part = parts_[i];
    Tensor term = Tensor::empty(step.pool(), y.shape(), step.compute_dtype, "layer output");
    part.mixer->forward(scaled(x, part.input_scale, step), context, step, term, kept ? &kept->parts[i] : nullptr);
    ops::add(term, sum, part.output_scale);
    if (!kept) return;
    if (kept->parts[i]->has_input()) kept->x = x;
    kept->parts[i]->set_input({});
  });
}

void SideBySide::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                                MixerCache& of) {
  auto& cache = dynamic_cast<PartCaches&>(of);
  add_terms(parts_.size(), y, step, [&](size_t i, Tensor& sum) {
    const Part& part = parts_[i];
    Tensor term = Tensor::empty(step.pool(), y.shape(), step.compute_dtype, "layer output");
    part.mixer->forward_cached(scaled(x, part.input_scale, step), context, step, term, *cache.parts[i]);
    ops::add(term, sum, part.output_scale);
  });
}

void SideBySide::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                          Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), dy.shape(), DType::f32, "input gradient");
  if (dx) dx->zero();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!dx && !part.mixer->has_trainable()) continue;
    if (saved.x) saved.parts[i]->set_input(scaled(saved.x, part.input_scale, step));
    Tensor gradient;
    part.mixer->backward(scaled(dy, part.output_scale, step), context, step, *saved.parts[i], dx ? &gradient : nullptr);
    saved.parts[i].reset();
    if (dx) ops::add(gradient, *dx, part.input_scale);
  }
}

std::unique_ptr<MixerCache> SideBySide::make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const {
  auto cache = std::make_unique<PartCaches>();
  for (const Part& part : parts_) cache->parts.push_back(part.mixer->make_cache(sequences, dtype, pool));
  return cache;
}

}  // namespace nibble
