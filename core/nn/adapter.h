#pragma once
// The seam between a layer and what fine-tuning adds to it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/nn/step_context.h"

namespace nibble {

/// What an Adapter keeps from forward to backward.
struct AdapterSaved {
  std::vector<Tensor> tensors;
};

/// Adds to (or rescales) the output of one Linear and accumulates its own gradients. Implementations: adapters/.
class Adapter {
 public:
  virtual ~Adapter() = default;

  /// Adds its part to y [T, out], which holds x W^T without bias. x [T, in]. saved == nullptr: nothing is kept, for
  /// inference or a forward that is run again before backward. Dropout follows step.training.
  virtual void forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
                       AdapterSaved* saved) = 0;

  /// What forward would add, as a product that the base's takes along, with the same `saved`; nothing where it is none,
  /// and forward is to be called.
  virtual std::optional<ops::LowRankEpilogue> low_rank_forward(const Tensor& x, const StepContext& step,
                                                               AdapterSaved* saved) {
    (void)x, (void)step, (void)saved;
    return std::nullopt;
  }
  /// What backward does, where dx is wanted and the base's gradient is dy itself, with its part of dx as such a
  /// product; nothing, and nothing done, where it is none.
  virtual std::optional<ops::LowRankEpilogue> low_rank_backward(const Tensor& dy, const Tensor& x,
                                                                const StepContext& step, const AdapterSaved& saved) {
    (void)dy, (void)x, (void)step, (void)saved;
    return std::nullopt;
  }

  /// Accumulates its gradients from dy [T, out] (the gradient of the Linear's output) and x, as far as they are
  /// trainable. Its part of the input gradient replaces dx [T, in], or is added to it if accumulate, unless dx is null.
  /// Returns the gradient for the base product: dy itself, or a rescaled copy (DoRA).
  virtual Tensor backward(const Tensor& dy, const Tensor& x, const LinearWeight& base, const StepContext& step,
                          AdapterSaved&& saved, Tensor* dx, bool accumulate) = 0;

  /// Whether any of its parameters has a gradient; an adapter attached for inference has none.
  virtual bool trainable() const = 0;

  /// Its parameters, under their PEFT names.
  virtual void visit(const ParameterVisitor& visitor) = 0;

  /// W += what the adapter does, on rows [begin, begin + rows.dim(0)) of W given as f32 [n, in].
  virtual void merge_rows(int64_t begin, Tensor& rows) const = 0;
};

}  // namespace nibble
