#pragma once
// Loss of a model on data it is not trained on.

#include <cstdint>
#include <functional>
#include <optional>

#include "nibble/core/models/batch.h"
#include "nibble/core/nn/step_context.h"

namespace nibble {

class Decoder;

struct Evaluation {
  double loss = 0;        ///< mean over label tokens, natural log
  double perplexity = 0;  ///< exp(loss)
  int64_t label_tokens = 0;
  int64_t tokens = 0;
};

/// Sum of the loss over one batch: Decoder::loss_sum, or what a pipeline does instead.
using LossSum = std::function<double(const Batch& batch, const StepContext& step)>;

/// Asked before batch `batch` of `batches`; false: the evaluation is left there.
using BeforeBatch = std::function<bool(int64_t batch, int64_t batches)>;

/// Loss over batches 0..count-1, divided once by all label tokens; dropout is off. Throws InputError when no token has
/// a label and NumericError when the loss is not finite.
/// rank.comm: ranks with different batches, whose sums are added. A batch without tokens stands for a rank that has no
/// more; for it, and for one without labels, `idle` is called instead. Nothing where `before` has said to leave, which
/// it says to all ranks.
std::optional<Evaluation> evaluate(const LossSum& loss_sum, int64_t count,
                                   const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                                   RankContext& rank, const BeforeBatch& before,
                                   const std::function<void()>& idle = {});
Evaluation evaluate(Decoder& model, int64_t count, const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                    RankContext& rank);

}  // namespace nibble
