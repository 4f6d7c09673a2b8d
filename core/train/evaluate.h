#pragma once
// Loss of a model on data it is not trained on.

#include <cstdint>
#include <functional>
#include <optional>

#include "nibble/core/train/step_executor.h"

namespace nibble {

struct Evaluation {
  double loss = 0;        ///< mean over what the objective counts; of label tokens: natural log
  double perplexity = 0;  ///< exp(loss); nan where the loss is not of next tokens
  int64_t label_tokens = 0;
  int64_t tokens = 0;
  Metrics metrics = {};  ///< of the objective
};

/// Asked before batch `batch` of `batches`; false: the evaluation is left there.
using BeforeBatch = std::function<bool(int64_t batch, int64_t batches)>;

/// Loss over batches 0..count-1, shared out over executor.data_ranks(), divided once by what the objective counts in
/// all of them; dropout is off. Throws InputError when it counts nothing and NumericError when the loss is not finite.
/// Nothing where `before` has said to leave, which it says to all ranks.
std::optional<Evaluation> evaluate(StepExecutor& executor, const Objective& objective, int64_t count,
                                   const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                                   const BeforeBatch& before);
/// One rank and NextToken.
Evaluation evaluate(Decoder& model, int64_t count, const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                    RankContext& rank);

}  // namespace nibble
