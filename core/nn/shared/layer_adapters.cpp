#include "nibble/core/nn/shared/layer_adapters.h"

#include <utility>

#include "nibble/core/ops/elementwise.h"

namespace nibble {

LayerAdapters::LayerAdapters(const std::string& name, const LayerAdapterConfig& config, int64_t out, int64_t in,
                             const Makers& makers) {
  for (const int64_t use : config.uses) {
    if (use == config.own) own_ = pairs_.size();
    const std::string of = name + "." + std::to_string(use);
    pairs_.push_back({makers.make_linear(of + ".0", config.rank, in, false),
                      makers.make_linear(of + ".1", out, config.rank, false)});
  }
}

void LayerAdapters::forward(const Tensor& x, Tensor& y, const StepContext& step, LayerAdaptersSaved* saved) {
  Pair& pair = own();
  Tensor inner = Tensor::empty(step.pool(), {x.dim(0), pair.down.out_features()}, step.compute_dtype, "layer adapter");
  pair.down.forward(x, inner, step, saved ? &saved->down : nullptr);
  Tensor added = Tensor::empty(step.pool(), y.shape(), DType::f32, "layer adapter");
  pair.up.forward(inner, added, step, saved ? &saved->up : nullptr);
  if (y.dtype() == DType::f32) return ops::add(added, y);
  ops::add(in_dtype(y, DType::f32, step), added);
  ops::cast(added, y);
}

void LayerAdapters::backward(const Tensor& dy, const StepContext& step, LayerAdaptersSaved&& saved, Tensor* dx) {
  Pair& pair = own();
  if (!dx && !pair.down.has_trainable()) return pair.up.backward(dy, step, std::move(saved.up), nullptr, false);
  Tensor inner = Tensor::empty(step.pool(), {dy.dim(0), pair.up.in_features()}, step.compute_dtype, "layer adapter");
  pair.up.backward(dy, step, std::move(saved.up), &inner, false);
  pair.down.backward(inner, step, std::move(saved.down), dx, true);
}

}  // namespace nibble
