#pragma once
// Which experts a token gets, and how much each counts.

#include <optional>

#include "nibble/core/nn/feed_forward/router_balance.h"
#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/nn/sublayer.h"
#include "nibble/core/ops/experts.h"

namespace nibble {

/// What a Router has found for T tokens, and what its backward needs.
struct Routed {
  Tensor logits;   ///< [T, E] f32
  Tensor weights;  ///< [T, k] f32, see ops::route
  /// [T, k] i32, the host's, which does not wait in files: not visited.
  Tensor chosen;
  LinearSaved linear;
  NormSaved norm;   ///< where the input is normed
  Tensor unscaled;  ///< [T, k] f32: the weights before the scales of the experts, where there are some

  void visit(const TensorVisitor& visitor) {
    linear.visit(visitor);
    norm.visit(visitor);
    for (Tensor* tensor : {&logits, &weights, &unscaled}) {
      if (*tensor) visitor(*tensor);
    }
  }
};

/// What a router may have beside its Linear (Gemma 4): an RMS norm of its input with a weight [D], after which that is
/// divided by the root of D, and a factor for the weights of each expert [E].
struct RouterScales {
  std::string input, experts;  ///< full names of the parameters; empty = none
  float eps = 1e-6f;
};

/// logits = x W^T (+ b), in f32 whatever the compute dtype is, then ops::route. The weight is never packed.
class Router final : public OfMembers<Router> {
 public:
  /// name: module path of the Linear, as PEFT has it; stored: where its weight is in the files; correction: full name
  /// of the vector added for the choice alone, which is no parameter ("" = none); in_row: it is [1, E].
  Router(const std::string& name, const std::string& stored, const std::string& correction, int64_t width,
         int64_t experts, bool bias, const ops::Routing& routing, const Makers& makers, bool in_row = false,
         const RouterScales& scales = {});

  const ops::Routing& routing() const { return routing_; }
  /// keep: linear's part of what backward needs.
  Routed forward(const Tensor& x, const StepContext& step, bool keep);
  /// Adds the gradient of x [T, D] to dx f32 unless null. x: forward's, needed where something is trainable.
  void backward(const Tensor& dweights, const Tensor& x, const StepContext& step, Routed&& routed, Tensor* dx);

  void each(const auto& use) { use(linear_, correction_, norm_, scales_); }

 private:
  ops::Routing routing_;
  Linear linear_;
  std::shared_ptr<Parameter> correction_, scales_;
  std::optional<Norm> norm_;

  float logit_scale() const;
};

}  // namespace nibble
