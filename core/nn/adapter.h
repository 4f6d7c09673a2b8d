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

/// What an adapter makes of the gradient dy [T, out] of its Linear's output.
struct AdapterGradient {
  Tensor base;                  ///< the gradient for the base product: dy itself, or a rescaled copy (DoRA)
  std::vector<Tensor> tensors;  ///< what accumulate_gradients and backward_input share
  /// The adapter's part of dx as a low-rank update fused into the base product; nullopt if it has no such form.
  std::optional<ops::LowRankEpilogue> update = std::nullopt;
};

/// Adds to (or rescales) the output of one Linear and accumulates its own gradients. Implementations: adapters/.
class Adapter {
 public:
  virtual ~Adapter() = default;

  /// The low-rank update of y fused into the base product, with the same `saved` as forward; nullopt if the update has
  /// no such form, and forward is to be called.
  virtual std::optional<ops::LowRankEpilogue> low_rank_forward(const Tensor& x, const StepContext& step,
                                                               AdapterSaved* saved) const {
    (void)x, (void)step, (void)saved;
    return std::nullopt;
  }
  /// Adds its part to y [T, out], which holds x W^T without bias. x [T, in]. saved == nullptr: nothing is kept, for
  /// inference or a forward that is run again before backward. Dropout follows step.training.
  virtual void forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
                       AdapterSaved* saved) const = 0;

  /// What follows from dy; accumulates nothing.
  virtual AdapterGradient backward(const Tensor& dy, const LinearWeight& base, const StepContext& step) const = 0;
  /// Accumulates the gradients of its parameters, which are trainable, and has no other effect. x: forward's.
  virtual void accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x,
                                    const StepContext& step, const AdapterSaved& saved) = 0;
  /// dx [T, in] (+)= its part of the input gradient, where `gradient` has no update for the base product.
  virtual void backward_input(const AdapterGradient& gradient, const Tensor& dy, const LinearWeight& base,
                              const StepContext& step, Tensor& dx, bool accumulate) const = 0;

  /// Whether any of its parameters has a gradient; an adapter attached for inference has none.
  virtual bool trainable() const = 0;

  /// Its parameters, under their PEFT names.
  virtual void visit(const ParameterVisitor& visitor) = 0;

  /// W += what the adapter does, on rows [begin, begin + rows.dim(0)) of W given as f32 [n, in].
  virtual void merge_rows(int64_t begin, Tensor& rows) const = 0;
};

}  // namespace nibble
