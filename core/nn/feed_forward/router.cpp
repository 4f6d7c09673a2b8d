#include "nibble/core/nn/feed_forward/router.h"

#include "nibble/core/ops/elementwise.h"

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
  std::vector<float> made;
  for (int64_t e = 0; e < experts(); ++e) {
    const double share = counts[static_cast<size_t>(e)] / rows;
    made.push_back(static_cast<float>(coefficient * static_cast<double>(experts()) * share / rows));
  }
  return made;
}

namespace {

Tensor widened(const Tensor& x, const StepContext& step) {
  if (x.dtype() == DType::f32) return x;
  Tensor wide = Tensor::empty(step.pool(), x.shape(), DType::f32, "router input");
  ops::cast(x, wide);
  return wide;
}

Linear make_router(const std::string& name, const std::string& stored, int64_t width, int64_t experts, bool bias,
                   const Makers& makers) {
  auto weight = std::make_unique<DenseWeight>(makers.parameter(stored + ".weight", {experts, width}));
  return {name, std::move(weight), bias ? makers.parameter(stored + ".bias", {experts}) : nullptr};
}

void count(const Routed& routed, RouterBalance& balance, MemoryPool& pool) {
  const size_t experts = static_cast<size_t>(balance.experts());
  NIBBLE_CHECK(static_cast<int64_t>(experts) == routed.logits.dim(1), "experts of the balance");
  Tensor sums = Tensor::zeros(pool.host(), {balance.experts()}, DType::i64, "router balance");
  ops::router_balance(routed.logits, sums);
  for (size_t e = 0; e < experts; ++e) balance.counts[experts + e] += static_cast<double>(sums.span<int64_t>()[e]);
  for (const int32_t e : routed.chosen.span<const int32_t>()) balance.counts[static_cast<size_t>(e)] += 1;
  balance.counts.back() += static_cast<double>(routed.logits.dim(0));
}

}  // namespace

Router::Router(const std::string& name, const std::string& stored, const std::string& correction, int64_t width,
               int64_t experts, bool bias, const ops::Routing& routing, const Makers& makers)
    : routing_(routing), linear_(make_router(name, stored, width, experts, bias, makers)) {
  linear_.keep_exact();
  if (correction.empty()) return;
  correction_ = makers.parameter(correction, {experts});
  correction_->buffer = true;
}

Routed Router::forward(const Tensor& x, const StepContext& step, bool keep) {
  const int64_t tokens = x.dim(0), experts = linear_.out_features();
  Routed routed;
  routed.logits = Tensor::empty(step.pool(), {tokens, experts}, DType::f32, "router logits");
  routed.weights = Tensor::empty(step.pool(), {tokens, routing_.k}, DType::f32, "router weights");
  routed.chosen = Tensor::empty(step.pool().host(), {tokens, routing_.k}, DType::i32, "chosen experts");
  linear_.forward(widened(x, step), routed.logits, step, keep ? &routed.linear : nullptr);
  routed.linear.x = {};  // it is the sublayer's, widened
  ops::route(routed.logits, correction_ ? correction_->value : Tensor(), routing_, routed.chosen, routed.weights);
  if (step.balance && step.balance->counting) count(routed, *step.balance, step.pool());
  return routed;
}

void Router::backward(const Tensor& dweights, const Tensor& x, const StepContext& step, Routed&& routed, Tensor* dx) {
  Tensor dlogits = Tensor::empty(step.pool(), routed.logits.shape(), DType::f32, "router gradient");
  ops::route_backward(dweights, routed.logits, routed.chosen, routing_, dlogits);
  if (step.balance && !step.balance->counting) {
    const std::vector<float> grads = step.balance->grads();
    ops::router_balance_backward(routed.logits, Tensor::from<float>(step.pool(), {std::ssize(grads)}, grads), dlogits);
  }
  if (has_trainable()) routed.linear.x = widened(x, step);
  linear_.backward(dlogits, step, std::move(routed.linear), dx, true);
}

void Router::visit(const ParameterVisitor& visitor) {
  linear_.visit(visitor);
  if (correction_) visitor(*correction_);
}

}  // namespace nibble
