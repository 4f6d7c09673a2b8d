#include "nibble/core/nn/streams/laurel.h"

#include "nibble/core/ops/elementwise.h"

namespace nibble {

struct Laurel::Saved final : SavedMembers<Saved> {
  std::unique_ptr<SublayerSaved> mixer;
  LinearSaved left, right;
  NormSaved norm, mixer_norm;

  void each(const auto& use) { use(mixer, left, right, norm, mixer_norm); }
  void inputs(const auto& use) { use(left.x, mixer); }
};

Laurel::Laurel(const std::string& prefix, const LaurelNames& names, std::unique_ptr<Mixer> mixer, int64_t width,
               int64_t rank, const NormConfig& norm, const Makers& makers)
    : mixer_(std::move(mixer)),
      left_(makers.make_linear(prefix + names.left, rank, width, false)),
      right_(makers.make_linear(prefix + names.right, width, rank, false)),
      norm_(prefix + names.norm, width, norm, makers.parameter),
      mixer_norm_(prefix + names.mixer_norm, width, norm, makers.parameter) {}

void Laurel::join(const Tensor& mixed, const Tensor& x, const StepContext& step, Tensor& y, Saved* saved) {
  const auto make = [&](int64_t columns, DType dtype) {
    return Tensor::empty(step.pool(), {x.dim(0), columns}, dtype, "augmented residual");
  };
  const int64_t width = x.dim(1);
  Tensor low = make(left_.out_features(), step.compute_dtype), wide = make(width, DType::f32);
  Tensor sum = make(width, DType::f32), normed = make(width, DType::f32);
  mixer_norm_.forward(mixed, sum, step, saved ? &saved->mixer_norm : nullptr);
  left_.forward(x, low, step, saved ? &saved->left : nullptr);
  right_.forward(low, wide, step, saved ? &saved->right : nullptr);
  norm_.forward(wide, normed, step, saved ? &saved->norm : nullptr);
  ops::add(normed, sum);
  ops::add(x, sum);
  ops::cast(sum, y);
}

void Laurel::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                     std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  Tensor mixed = Tensor::empty(step.pool(), x.shape(), DType::f32, "layer output");
  mixer_->forward(x, context, step, mixed, kept ? &kept->mixer : nullptr);
  join(mixed, x, step, y, kept);
}

void Laurel::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                      Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  const auto through = [&](Norm& norm, NormSaved& norm_saved) {
    Tensor result = Tensor::zeros(step.pool(), dy.shape(), DType::f32, "norm gradient");
    norm.backward(dy, step, std::move(norm_saved), result);
    return in_compute_dtype(result, step);
  };
  mixer_->backward(through(mixer_norm_, saved.mixer_norm), context, step, *saved.mixer, dx);
  saved.mixer.reset();
  Tensor dlow = Tensor::empty(step.pool(), {dy.dim(0), left_.out_features()}, step.compute_dtype, "residual gradient");
  right_.backward(through(norm_, saved.norm), step, std::move(saved.right), &dlow, false);
  left_.backward(dlow, step, std::move(saved.left), dx, true);
  if (dx) ops::add(dy, *dx);
}

std::unique_ptr<MixerCache> Laurel::make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const {
  return mixer_->make_cache(sequences, dtype, pool);
}

void Laurel::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                            MixerCache& cache) {
  Tensor mixed = Tensor::empty(step.pool(), x.shape(), DType::f32, "layer output");
  mixer_->forward_cached(x, context, step, mixed, cache);
  join(mixed, x, step, y, nullptr);
}

}  // namespace nibble
