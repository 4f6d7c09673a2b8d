#pragma once
// What a model says of the answers in a file.

#include "nibble/core/data/dataset.h"
#include "nibble/core/models/decoder.h"
#include "nibble/recipes/evaluation/evaluate_model.h"

namespace nibble {

struct AnswerLogProb {
  double log_prob = 0;  ///< sum over the answer's tokens, its end included, the prompt's not
  int64_t tokens = 0;
};

/// Of each record of options.train (`split` of directories with splits), in order: chosen and rejected, or the one
/// completion. Nothing is cut. Throws InputError where a record has an answer without tokens, NumericError where a
/// log-probability is not finite. on_data: called with the answers before they are computed.
std::vector<std::vector<AnswerLogProb>> answer_log_probs(Decoder& model, DataOptions options, const Encoder& encoder,
                                                         const StepContext& step, DataSplit split = DataSplit::train,
                                                         const EvaluationWatch& watch = {},
                                                         const std::function<void(const Dataset&)>& on_data = {});

}  // namespace nibble
