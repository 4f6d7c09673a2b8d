#include "nibble/core/nn/feed_forward/mlp_and_experts.h"

#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

Tensor normed(const Norm& norm, const Tensor& x, DType dtype, const StepContext& step, NormSaved* saved) {
  Tensor result = Tensor::empty(step.pool(), x.shape(), dtype, "norm");
  norm.forward(x, result, step, saved);
  return result;
}

}  // namespace

struct MlpAndExperts::Saved final : SavedMembers<Saved> {
  Tensor x;
  NormSaved mlp_norm, post_mlp_norm, experts_norm, post_experts_norm;
  std::unique_ptr<SublayerSaved> mlp, experts;

  void each(const auto& use) { use(mlp_norm, post_mlp_norm, experts_norm, post_experts_norm, mlp, experts, x); }
  void inputs(const auto& use) { use(x); }
};

MlpAndExperts::MlpAndExperts(const std::string& prefix, const MlpAndExpertsNames& names, const NormConfig& norm,
                             std::unique_ptr<Mlp> mlp, std::unique_ptr<Experts> experts, int64_t width,
                             const Makers& makers)
    : mlp_(std::move(mlp)),
      experts_(std::move(experts)),
      mlp_norm_(prefix + names.mlp_norm, width, norm, makers.parameter),
      post_mlp_norm_(prefix + names.post_mlp_norm, width, norm, makers.parameter),
      experts_norm_(prefix + names.experts_norm, width, norm, makers.parameter),
      post_experts_norm_(prefix + names.post_experts_norm, width, norm, makers.parameter) {}

void MlpAndExperts::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                            std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  const auto keep = [&](auto Saved::*of) { return kept ? &(kept->*of) : nullptr; };
  const Tensor wide = in_dtype(x, DType::f32, step);
  if (kept) kept->x = x;
  Tensor part = Tensor::empty(step.pool(), x.shape(), DType::f32, "layer output");
  mlp_->forward(normed(mlp_norm_, wide, step.compute_dtype, step, keep(&Saved::mlp_norm)), context, step, part,
                keep(&Saved::mlp));
  Tensor sum = normed(post_mlp_norm_, part, DType::f32, step, keep(&Saved::post_mlp_norm));
  part = Tensor::empty(step.pool(), x.shape(), DType::f32, "layer output");
  experts_->forward_routed_by(normed(experts_norm_, wide, step.compute_dtype, step, keep(&Saved::experts_norm)), x,
                              context, step, part, keep(&Saved::experts));
  ops::add(normed(post_experts_norm_, part, DType::f32, step, keep(&Saved::post_experts_norm)), sum);
  ops::cast(sum, y);
}

void MlpAndExperts::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                             Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), dy.shape(), DType::f32, "input gradient");
  if (dx) dx->zero();
  Tensor none = Tensor::zeros(step.pool(), dy.shape(), DType::f32, "input gradient");
  Tensor& sum = dx ? *dx : none;  // the norms inside want a place for what nobody does
  const auto output_gradient = [&](Norm& norm, NormSaved& norm_saved) {
    Tensor result = Tensor::zeros(step.pool(), dy.shape(), DType::f32, "norm gradient");
    norm.backward(dy, step, std::move(norm_saved), result);
    return in_compute_dtype(result, step);
  };
  Tensor dinput;
  mlp_->backward(output_gradient(post_mlp_norm_, saved.post_mlp_norm), context, step, *saved.mlp, &dinput);
  mlp_norm_.backward(dinput, step, std::move(saved.mlp_norm), sum);
  dinput = {};
  experts_->backward_routed_by(output_gradient(post_experts_norm_, saved.post_experts_norm), saved.x, context, step,
                               *saved.experts, &dinput, &sum);
  experts_norm_.backward(dinput, step, std::move(saved.experts_norm), sum);
}

}  // namespace nibble
