#pragma once
// Inputs that every layer has of its own, from the ids and from their embeddings (Gemma 3n and 4).

#include <vector>

#include "nibble/core/nn/embedding.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/norms/norm.h"

namespace nibble {

struct LayerInputsSaved {
  LinearSaved projection;
  NormSaved norm;
};

/// For all L layers at once: (norm(projection(x) / sqrt(D)) + sqrt(P) table(ids)) / sqrt(2). The table may have fewer
/// rows than the vocabulary: the ids behind them get row 0, that of padding, and do not train it.
struct LayerInputs {
  Embedding table;    ///< [rows, L * P]
  Linear projection;  ///< [L * P, D]
  Norm norm;          ///< [P]
  int64_t layers = 0;

  bool has_trainable() const;
  /// [layers] of [T, P] in the compute dtype from ids [T] i32 and the embeddings x [T, D] f32.
  std::vector<Tensor> forward(const Tensor& ids, const Tensor& x, const StepContext& step, LayerInputsSaved* saved);
  /// Accumulates gradients, and adds to dx [T, D] f32. An undefined gradient is zero.
  void backward(const Tensor& ids, const std::vector<Tensor>& gradients, const StepContext& step,
                LayerInputsSaved&& saved, Tensor& dx);
  void visit(const ParameterVisitor& visitor);

 private:
  int64_t rows() { return table.table().value.dim(0); }
};

}  // namespace nibble
