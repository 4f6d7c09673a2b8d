#pragma once
// The feed-forward half of a layer: down(f(gate x) * up x), or down(f(up x)) when not gated.

#include <optional>

#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/makers.h"
#include "nibble/core/ops/activation.h"

namespace nibble {

struct MlpConfig {
  int64_t width = 0;   ///< D
  int64_t hidden = 0;  ///< F
  ops::Activation activation = ops::Activation::silu;
  bool gated = true;
  bool bias = false;
};

/// Module names below the layer's prefix.
struct MlpNames {
  std::string gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
  std::string gate_up;  ///< of a fused projection (Phi-3: rows of gate, then of up); empty = apart
};

/// Kept from forward to backward; the product that enters `down` is computed again from gate and up.
struct MlpSaved {
  /// The input that gate and up share, as in AttentionSaved.
  bool has_input() const { return gate_up_proj.x || gate_proj.x || up_proj.x; }
  void set_input(const Tensor& x) { gate_up_proj.x = gate_proj.x = up_proj.x = x; }

  LinearSaved gate_up_proj, gate_proj, up_proj, down_proj;
  Tensor gate, up;  ///< [T, F]; gate is undefined when not gated
};

class Mlp {
 public:
  Mlp(const std::string& prefix, const MlpNames& names, const MlpConfig& config, const Makers& makers);

  bool has_trainable() const;
  /// y [T, D] (f32 or bf16) from x [T, D] in the compute dtype
  void forward(const Tensor& x, const StepContext& step, Tensor& y, MlpSaved* saved);
  /// What forward would keep, without its last product where nothing needs that; dtype: of y.
  void keep(const Tensor& x, DType dtype, const StepContext& step, MlpSaved& saved);
  /// dx [T, D] f32 = input gradient unless null; dy [T, D] in the compute dtype
  void backward(const Tensor& dy, const StepContext& step, MlpSaved&& saved, Tensor* dx);

  void visit(const ParameterVisitor& visitor);
  void visit_linears(const std::function<void(Linear&)>& visitor);

 private:
  void project(const Tensor& x, const StepContext& step, Tensor& gate, Tensor& up, MlpSaved* saved);
  void project_backward(const Tensor& dgate, const Tensor& dup, const StepContext& step, MlpSaved& saved, Tensor* dx);
  /// f(gate) * up or f(up)
  Tensor activate(const Tensor& gate, const Tensor& up, const StepContext& step) const;

  MlpConfig config_;
  std::optional<Linear> gate_up_, gate_, up_, down_;
};

}  // namespace nibble
