#pragma once
// How good a model is on a file: loss and perplexity, and whether it answers prompts exactly.

#include "nibble/core/data/data_options.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/train/evaluate.h"
#include "nibble/recipes/evaluation/answer.h"

namespace nibble {

class Dataset;

/// Told how much of an evaluation is done.
using EvaluationWatch = std::function<void(int64_t done, int64_t of)>;

/// Mean loss over the label tokens of `options.train` (DataSplit::eval of directories with splits), in file order.
/// on_data: called with the samples before they are evaluated.
Evaluation evaluate_loss(Decoder& model, const DataOptions& options, const Encoder& encoder, DType compute_dtype,
                         RankContext& rank, const EvaluationWatch& watch = {},
                         const std::function<void(const Dataset&)>& on_data = {});

struct ExactMatch {
  int64_t asked = 0;
  int64_t right = 0;
  double share() const { return asked == 0 ? 0 : static_cast<double>(right) / static_cast<double>(asked); }
};

/// How answers are compared otherwise than token by token.
struct AnswerComparison {
  AnswerRule rule;
  const Tokenizer& tokenizer;
  int64_t max_new_tokens = 256;
};

/// For the first `limit` samples (0: all) of the same data: what comes before the last answer (trained tokens in a
/// row) is continued greedily to its length; right when all its tokens are the sample's, the end of a turn included
/// where it is trained. With a `comparison` it is continued to its end, and right when what the rule finds in the text
/// is what it finds in the sample's answer; InputError for a sample in whose answer it finds nothing.
ExactMatch exact_match(Decoder& model, const DataOptions& options, const Encoder& encoder, int64_t limit,
                       const StepContext& step, const std::optional<AnswerComparison>& comparison = std::nullopt,
                       const EvaluationWatch& watch = {});

}  // namespace nibble
