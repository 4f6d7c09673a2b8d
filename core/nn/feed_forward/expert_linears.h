#pragma once
// One Linear of every expert: the rows of all experts in one product, or, where weights or adapters have no such form,
// expert by expert.

#include <optional>
#include <vector>

#include "nibble/core/nn/feed_forward/grouped_forms.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/sublayer.h"
#include "nibble/core/ops/experts/grouped.h"

namespace nibble {

/// The rows of the experts that have some; group g is those of expert experts[g].
struct ExpertGroups : ops::RowGroups {
  std::vector<size_t> experts;
};

/// A tensor and which rows it has: those of the experts, one after another, or the tokens'.
struct ExpertRows {
  Tensor values;
  ops::RowOrder order = ops::RowOrder::groups;
  /// Of results: where low-rank updates go that are added when all products have been (ops::fuses_update); undefined:
  /// to the others.
  Tensor apart = {};
};

/// What ExpertLinears keep from forward to backward.
struct ExpertLinearsSaved {
  Tensor inner;                   ///< [N, R]: x A^T of the adapters
  std::vector<LinearSaved> each;  ///< by expert, where they are multiplied one by one
  void visit(const TensorVisitor& visitor);
};

class ExpertLinears {
 public:
  std::vector<Linear> each;  ///< by expert

  bool empty() const { return each.empty(); }
  bool has_trainable() const;
  bool has_adapter();
  /// Whether the adapters' updates of results in the order of the tokens are added after all products: of rows x in the
  /// dtype, or, backward, of gradients.
  bool adds_updates_apart(DType dtype, ops::RowOrder order, bool backward, const StepContext& step);

  /// Biases of results in the order of the tokens: [out] f32 for every group, of which row n gets weights[n] times.
  struct Biases {
    std::vector<Tensor> values;
    Tensor weights;  ///< f32 [N]
  };
  /// y = the results of x; y of the tokens, f32, is added to. saved null: inference.
  void forward(const ExpertRows& x, const ExpertGroups& groups, ExpertRows y, const StepContext& step,
               ExpertLinearsSaved* saved, const Biases* biases = nullptr);
  /// What forward would save, without y.
  void forward_save_only(const ExpertRows& x, const ExpertGroups& groups, const StepContext& step,
                         ExpertLinearsSaved& saved);
  /// Accumulates gradients; dx (+)= input gradient unless null, of the tokens always added to. x: forward's, where
  /// something is trainable.
  void backward(const ExpertRows& dy, const ExpertRows& x, const ExpertGroups& groups, const StepContext& step,
                ExpertLinearsSaved&& saved, const ExpertRows* dx, bool accumulate);

 private:
  struct Grouped;
  std::optional<Grouped> grouped(const ExpertGroups& groups, const StepContext& step);
  static void multiply(const ExpertRows& x, const ExpertGroups& groups, ops::GroupedWeights& weights,
                       const ExpertRows& y, bool accumulate);
  void accumulate_gradients(const ExpertRows& dy, const ExpertRows& x, const Tensor& inner, const Tensor& dinner,
                            const Grouped& all, const ExpertGroups& groups, const StepContext& step);
  void backward_one_by_one(const ExpertRows& dy, const ExpertRows& x, const ExpertGroups& groups,
                           const StepContext& step, ExpertLinearsSaved& saved, const ExpertRows* dx, bool accumulate);
};

/// Rows of group g, shared or gathered.
Tensor rows_of_group(const ExpertRows& x, const ops::RowGroups& groups, int64_t g, MemoryPool& pool);

}  // namespace nibble
