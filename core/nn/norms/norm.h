#pragma once
// Norm: RMSNorm or LayerNorm of the residual stream, with its parameters.

#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/step_context.h"

namespace nibble {

enum class NormKind : uint8_t { rms, layer };

struct NormConfig {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  float weight_offset = 0;  ///< multiplies by (weight_offset + weight): 1 in Gemma and Nemotron
  bool bias = false;        ///< layer only
  bool weight = true;       ///< false = no parameters at all (OLMo, Llama 4's heads)
};

/// What a Norm keeps from forward to backward; x is shared with the caller.
struct NormSaved {
  Tensor x;     ///< [T, D] f32
  Tensor mean;  ///< [T] f32, layer only
  Tensor inv;   ///< [T] f32: 1 / rms, or 1 / standard deviation

  void visit(const std::function<void(Tensor&)>& visitor) {
    for (Tensor* tensor : {&x, &mean, &inv}) {
      if (*tensor) visitor(*tensor);
    }
  }
};

class Norm {
 public:
  /// name: module path; its parameters are name + ".weight" and name + ".bias", [size] f32.
  Norm(const std::string& name, int64_t size, const NormConfig& config, const ParameterMaker& make);
  /// One of several norms whose weights are the rows of one parameter [norms, size] f32; a bias there is not.
  Norm(std::shared_ptr<Parameter> weights, int64_t row, const NormConfig& config);

  bool has_trainable() const;
  /// y [T, D] f32 or bf16 from x [T, D] f32. saved == nullptr: inference.
  void forward(const Tensor& x, Tensor& y, const StepContext& step, NormSaved* saved) const;
  /// dx [T, D] f32 += gradient from dy [T, D] f32 or bf16; accumulates the parameters' gradients.
  void backward(const Tensor& dy, const StepContext& step, NormSaved&& saved, Tensor& dx);
  void visit(const ParameterVisitor& visitor);

 private:
  /// What the op multiplies normed elements by; it adds the offset itself in an RMSNorm.
  Tensor scale(const StepContext& step) const;
  /// The norm's own row of a value or gradient of weight_, which may be undefined.
  Tensor own(const Tensor& weights) const;

  NormConfig config_;
  int64_t size_;
  int64_t row_ = -1;  // of weight_, -1: all of it
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

}  // namespace nibble
