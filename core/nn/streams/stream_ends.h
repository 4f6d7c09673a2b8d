#pragma once
// Where one residual stream becomes several before the layers, and one again behind them (AltUp in Gemma 3n).

#include <vector>

#include "nibble/core/nn/linear.h"

namespace nibble {

/// Linears [D, D] of all streams but the first; what each makes has the root mean square of the first stream's rows.
struct StreamEnds {
  /// Kept from forward to backward.
  struct Saved {
    Tensor x;
    std::vector<LinearSaved> linears;
    std::vector<Tensor> projected;  ///< [T, D] f32 each
  };

  std::vector<Linear> linears;  ///< [N - 1]

  int64_t streams() const { return static_cast<int64_t>(linears.size()) + 1; }
  bool has_trainable() const;
  /// [N T, D] f32, stream after stream, from x [T, D] f32: itself, and what the Linears make of it. saved == nullptr:
  /// inference.
  Tensor split(const Tensor& x, const StepContext& step, Saved* saved);
  /// Accumulates gradients; returns that of x.
  Tensor split_backward(const Tensor& gradient, const StepContext& step, Saved&& saved);
  /// The mean [T, D] f32 of the first stream of x [N T, D] f32 and of what the Linears make of the others.
  Tensor join(const Tensor& x, const StepContext& step, Saved* saved);
  Tensor join_backward(const Tensor& gradient, const StepContext& step, Saved&& saved);
  void visit(const ParameterVisitor& visitor);
  void visit_linears(const std::function<void(Linear&)>& visitor);

 private:
  /// y = what Linear i makes of x, with the root mean square of `like`; the way back adds to dx and dlike.
  void make(size_t i, const Tensor& x, const Tensor& like, Tensor& y, const StepContext& step, Saved* saved);
  void make_backward(size_t i, const Tensor& dy, const Tensor& like, const StepContext& step, Saved& saved, Tensor& dx,
                     Tensor& dlike);
};

}  // namespace nibble
