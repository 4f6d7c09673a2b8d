#pragma once
// Classes and numbers of whole texts, with the losses of Transformers' *ForSequenceClassification.

#include "nibble/core/objectives/options.h"

namespace nibble {

/// Of a score head with `labels` rows and texts that each have `values` numbers: as asked, or as Transformers infers
/// it.
ProblemType problem_type_of(ProblemType asked, int64_t labels, size_t values);

/// What is wrong with the label of a text, empty: nothing. A class is a whole number below `labels`; several labels are
/// 0 to 1 each; regression takes any number for each row.
std::string label_mistake(ProblemType asked, int64_t labels, std::span<const float> values);

/// Mean over the texts of a step: cross-entropy of the class; or the mean over the labels of the squared error, or of
/// the binary cross-entropy. Facts: share of labels that are right.
class Classification final : public Objective {
 public:
  explicit Classification(const ObjectiveOptions& options) : problem_(options.problem_type), pad_(options.pad_id) {}

  LossCounts counts(const Batch& batch) const override;
  bool wants_scores() const override { return true; }
  std::vector<int32_t> score_rows(const Batch& batch) const override;
  double loss_sum(const Batch& batch, const LabelLogProbs& seen, const LossCounts& step,
                  std::span<float> weights) const override;
  std::vector<SampleFacts> facts(const Batch& batch, const LabelLogProbs& seen) const override;
  /// accuracy; none of regression.
  Metrics metrics(std::span<const SampleFacts> facts, const LossCounts& step) const override;

 private:
  ProblemType problem_;
  int32_t pad_;
};

}  // namespace nibble
