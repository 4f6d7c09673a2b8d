#pragma once
// One optimizer step: microbatches in, updated parameters out.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/train/optimizer.h"
#include "nibble/core/train/step_executor.h"

namespace nibble {

class Batches;
class Decoder;

struct StepResult {
  double loss = 0;       ///< mean over what the objective counts in all microbatches, before the update
  double grad_norm = 0;  ///< 2-norm over all trainable tensors, before clipping
  int64_t label_tokens = 0;
  int64_t tokens = 0, computed_tokens = 0;  ///< see StepSums
  std::optional<int64_t> new_tokens;        ///< of these, that no step before had; absent: all
  Metrics metrics;                          ///< of the objective
  bool updated = true;  ///< false when there was nothing to learn, or of a bad step: nothing was changed
  /// Bad step: what is not finite, beginning with the first in the order parameters, gradients, loss ("gradient of
  /// model.layers.0...lora_B.weight, element 3 of 512, is nan"). Empty: all is finite.
  std::vector<std::string> nonfinite;
};

/// Zeroes the gradients, runs all microbatches (those of executor.begin_step), clips, updates.
/// Loss and gradients are sums, divided once by what the objective counts in all microbatches of all ranks: see
/// StepExecutor::gradients. So k microbatches give what one large batch gives.
/// Clipping is torch.nn.utils.clip_grad_norm_: gradients are multiplied by min(1, max_grad_norm / (norm + 1e-6)); the
/// norm is summed in f64 in a fixed order.
/// Where the loss, or the gradient of a tensor of any rank, is not finite, no rank updates anything: see
/// StepResult::nonfinite. Run::log decides what follows.
StepResult train_step(StepExecutor& executor, std::span<const Batch> microbatches, const Objective& objective,
                      Optimizer& optimizer, const StepOptions& options);
/// One rank and NextToken.
StepResult train_step(Decoder& model, std::span<const Batch> microbatches, Optimizer& optimizer,
                      const StepOptions& options, RankContext& rank);

/// The step `options.step` of `batches`.
StepResult train_step(Decoder& model, const Batches& batches, Optimizer& optimizer, const StepOptions& options,
                      RankContext& rank);

/// Every trainable parameter of `model`, in its order.
std::vector<Parameter*> trainable_parameters(Decoder& model);

}  // namespace nibble
