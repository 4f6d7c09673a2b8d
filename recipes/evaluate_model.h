#pragma once
// How good a model is on a file: loss and perplexity, and whether it answers prompts exactly.

#include "nibble/core/data/data_options.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/text/tokenizer.h"
#include "nibble/core/train/evaluate.h"

namespace nibble {

/// Mean loss over the label tokens of `options.train`, in file order.
Evaluation evaluate_loss(Decoder& model, const DataOptions& options, const Encoder& encoder, DType compute_dtype,
                         RankContext& rank);

struct ExactMatch {
  int64_t asked = 0;
  int64_t right = 0;
  double share() const { return asked == 0 ? 0 : static_cast<double>(right) / static_cast<double>(asked); }
};

/// For the first `limit` samples (0: all) of `options.train`: the prompt (tokens before the first trained one) is
/// continued greedily to the length of the answer; right when all its tokens, end included, are the sample's.
ExactMatch exact_match(Decoder& model, const DataOptions& options, const Encoder& encoder, int64_t limit,
                       const StepContext& step);

}  // namespace nibble
