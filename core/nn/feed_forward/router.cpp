#include "nibble/core/nn/feed_forward/router.h"

#include <cmath>

#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"

namespace nibble {

double RouterBalance::loss() const {
  const size_t experts = static_cast<size_t>(this->experts());
  const double rows = counts.back();
  double sum = 0;
  for (size_t e = 0; e < experts; ++e) sum += counts[e] / rows * (counts[experts + e] / ops::kBalanceUnit / rows);
  return rows > 0 ? coefficient * static_cast<double>(experts) * sum : 0;
}

std::vector<float> RouterBalance::grads() const {
  const double rows = counts.back();
  std::vector<float> result;
  for (int64_t e = 0; e < experts(); ++e) {
    const double share = counts[static_cast<size_t>(e)] / rows;
    result.push_back(static_cast<float>(coefficient * static_cast<double>(experts()) * share / rows));
  }
  return result;
}

namespace {

Linear make_router(const std::string& name, const std::string& stored, int64_t width, int64_t experts, bool bias,
                   const Makers& makers) {
  auto weight = std::make_unique<DenseWeight>(makers.parameter(stored + ".weight", {experts, width}));
  return {name, std::move(weight), bias ? makers.parameter(stored + ".bias", {experts}) : nullptr};
}

// The best logits choose, whatever correction, groups or scores chose in the router.
void count(const Routed& routed, RouterBalance& balance, MemoryPool& pool) {
  const size_t experts = static_cast<size_t>(balance.experts());
  NIBBLE_CHECK(static_cast<int64_t>(experts) == routed.logits.dim(1), "experts of the balance");
  Tensor sums = Tensor::zeros(pool.host(), {balance.experts()}, DType::i64, "router balance");
  ops::router_balance(routed.logits, sums);
  for (size_t e = 0; e < experts; ++e) balance.counts[experts + e] += static_cast<double>(sums.span<int64_t>()[e]);
  Tensor best = Tensor::empty(pool.host(), routed.chosen.shape(), DType::i32, "router balance");
  Tensor weights = Tensor::empty(pool, routed.weights.shape(), DType::f32, "router balance");
  ops::route(routed.logits, {}, {.k = best.dim(1)}, best, weights);
  for (const int32_t e : best.span<const int32_t>()) balance.counts[static_cast<size_t>(e)] += 1;
  balance.counts.back() += static_cast<double>(routed.logits.dim(0));
}

}  // namespace

Router::Router(const std::string& name, const std::string& stored, const std::string& correction, int64_t width,
               int64_t experts, bool bias, const ops::Routing& routing, const Makers& makers, bool in_row,
               const RouterScales& scales)
    : routing_(routing), linear_(make_router(name, stored, width, experts, bias, makers)) {
  linear_.keep_exact();
  if (!scales.input.empty()) {
    const auto named = [&](const std::string&, const Shape& shape) { return makers.parameter(scales.input, shape); };
    norm_.emplace("", width, NormConfig{.kind = NormKind::rms, .eps = scales.eps}, named);
  }
  if (!scales.experts.empty()) scales_ = makers.parameter(scales.experts, {experts});
  if (correction.empty()) return;
  correction_ = makers.parameter(correction, in_row ? Shape{1, experts} : Shape{experts});
  correction_->buffer = true;
}

Routed Router::forward(const Tensor& x, const StepContext& step, bool keep) {
  const int64_t tokens = x.dim(0), experts = linear_.out_features();
  Routed routed;
  routed.logits = Tensor::empty(step.pool(), {tokens, experts}, DType::f32, "router logits");
  routed.weights = Tensor::empty(step.pool(), {tokens, routing_.k}, DType::f32, "router weights");
  routed.chosen = Tensor::empty(step.pool().host(), {tokens, routing_.k}, DType::i32, "chosen experts");
  Tensor input = in_dtype(x, DType::f32, step);
  if (norm_) {
    input = Tensor::empty(step.pool(), x.shape(), DType::f32, "router input");
    norm_->forward(in_dtype(x, DType::f32, step), input, step, keep ? &routed.norm : nullptr);
  }
  linear_.forward(input, routed.logits, step, keep ? &routed.linear : nullptr);
  if (norm_) ops::scale(routed.logits, logit_scale());
  routed.linear.x = {};  // it is the sublayer's, widened
  ops::route(routed.logits, correction_ ? correction_->value.reshape({experts}) : Tensor(), routing_, routed.chosen,
             routed.weights);
  if (scales_) {
    const Shape each = {routed.weights.numel(), 1};
    routed.unscaled = routed.weights;
    Tensor factors = Tensor::empty(step.pool(), each, DType::f32, "scales of experts");
    ops::gather_rows(scales_->value.reshape({experts, 1}), routed.chosen.reshape({each[0]}), factors);
    Tensor scaled = Tensor::empty(step.pool(), each, DType::f32, "router weights");
    ops::scale_rows(routed.unscaled.reshape(each), factors.reshape({each[0]}), scaled);
    routed.weights = scaled.reshape(routed.unscaled.shape());
  }
  if (step.balance && step.balance->counting) count(routed, *step.balance, step.pool());
  return routed;
}

float Router::logit_scale() const { return 1 / std::sqrt(static_cast<float>(linear_.in_features())); }

void Router::backward(const Tensor& of, const Tensor& x, const StepContext& step, Routed&& routed, Tensor* dx) {
  Tensor dweights = of;
  if (scales_) {
    const Shape each = {of.numel(), 1};
    const Tensor rows = routed.chosen.reshape({each[0]});
    const auto make = [&] { return Tensor::empty(step.pool(), each, DType::f32, "router gradient"); };
    Tensor factors = make(), scaled = make(), dfactors = Tensor::empty(step.pool(), {each[0]}, DType::f32, "scales");
    ops::gather_rows(scales_->value.reshape({scales_->value.numel(), 1}), rows, factors);
    ops::scale_rows_backward(of.reshape(each), routed.unscaled.reshape(each), factors.reshape({each[0]}), scaled,
                             dfactors);
    dweights = scaled.reshape(of.shape());
    if (scales_->trainable) {
      Tensor table = scales_->gradient.reshape({scales_->value.numel(), 1});
      ops::embedding_backward(rows, dfactors.reshape(each), 1, table);
    }
  }
  Tensor dlogits = Tensor::empty(step.pool(), routed.logits.shape(), DType::f32, "router gradient");
  ops::route_backward(dweights, routed.logits, routed.chosen, routing_, dlogits);
  if (step.balance && !step.balance->counting) {
    const std::vector<float> grads = step.balance->grads();
    ops::router_balance_backward(routed.logits, Tensor::from<float>(step.pool(), {std::ssize(grads)}, grads), dlogits);
  }
  if (!norm_) {
    if (has_trainable()) routed.linear.x = in_dtype(x, DType::f32, step);
    return linear_.backward(dlogits, step, std::move(routed.linear), dx, true);
  }
  ops::scale(dlogits, logit_scale());
  Tensor dnormed = Tensor::empty(step.pool(), routed.norm.x.shape(), DType::f32, "router gradient");
  if (linear_.has_trainable()) {
    routed.linear.x = Tensor::empty(step.pool(), dnormed.shape(), DType::f32, "router input");
    norm_->forward(routed.norm.x, routed.linear.x, step, nullptr);
  }
  linear_.backward(dlogits, step, std::move(routed.linear), &dnormed, false);
  Tensor sum = dx ? *dx : Tensor::zeros(step.pool(), dnormed.shape(), DType::f32, "router gradient");
  norm_->backward(dnormed, step, std::move(routed.norm), sum);
}

}  // namespace nibble
