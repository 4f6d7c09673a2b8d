#pragma once
// Norms of queries, keys or values by head.

#include <optional>
#include <vector>

#include "nibble/core/nn/norms/norm.h"

namespace nibble {

/// Over which elements of a query or key a family takes its norm.
enum class HeadNormKind : uint8_t {
  head,        ///< the K elements of a head, one weight [K] for all heads (Qwen3, Gemma 3, Phi)
  every_head,  ///< the same with a weight for each head: modules name + ".norms.<h>" (StableLM)
  rows,        ///< a weight for each head, all of them one parameter [n, K] (Cohere)
  whole,       ///< all heads together, weight [n K] (OLMo 2)
};

struct HeadNormConfig {
  HeadNormKind kind = HeadNormKind::head;
  NormConfig norm;
};

/// One NormSaved per norm.
using HeadNormSaved = std::vector<NormSaved>;

class HeadNorm {
 public:
  HeadNorm(const std::string& name, const HeadNormConfig& config, int64_t heads, int64_t head_size,
           const ParameterMaker& make);

  bool has_trainable() const;
  /// y [T, n K] f32 or bf16 from x [T, n K] f32. saved == nullptr: inference.
  void forward(const Tensor& x, Tensor& y, const StepContext& step, HeadNormSaved* saved) const;
  /// dx [T, n K] f32 += gradient from dy [T, n K] f32 or bf16; accumulates the parameters' gradients.
  void backward(const Tensor& dy, const StepContext& step, HeadNormSaved&& saved, Tensor& dx);
  void visit(const ParameterVisitor& visitor);

 private:
  int64_t row_;              ///< elements under one norm
  bool one_parameter_;       ///< which all norms share
  std::vector<Norm> norms_;  ///< one, or one for each head
};

}  // namespace nibble
