#pragma once
// One optimizer step: microbatches in, updated parameters out.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "nibble/core/models/batch.h"
#include "nibble/core/nn/step_context.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/optimizer.h"

namespace nibble {

class Batches;
class Decoder;
class Trace;

struct StepOptions {
  int64_t step = 1;          ///< number of this update, from 1; keys dropout
  double lr = 0;             ///< see Schedule
  double max_grad_norm = 0;  ///< 0: no clipping
  GradientSum gradient_sum = GradientSum::tree;
  DType compute_dtype = DType::f32;
  Trace* trace = nullptr;  ///< records the update, see trace.h
};

struct StepResult {
  double loss = 0;       ///< mean over the label tokens of all microbatches, before the update
  double grad_norm = 0;  ///< 2-norm over all trainable tensors, before clipping
  int64_t label_tokens = 0;
  int64_t tokens = 0;
  bool updated = true;  ///< false when no token of the step has a label: nothing was computed or changed
};

/// Sum of the loss over one microbatch, and gradient_scale times its gradient added to the parameters:
/// Decoder::loss_sum_and_gradients, or what a pipeline does instead.
using LossAndGradients = std::function<double(const Batch& microbatch, const StepContext& step, float gradient_scale)>;

/// Zeroes the gradients, runs all microbatches, clips, updates.
/// Loss and gradients are sums over tokens, divided once by the number of label tokens of all microbatches and ranks,
/// which is agreed before the first forward; so k microbatches give what one large batch gives.
/// Clipping is torch.nn.utils.clip_grad_norm_: gradients are multiplied by min(1, max_grad_norm / (norm + 1e-6)); the
/// norm is summed in f64 in a fixed order.
/// Throws NumericError naming the first tensor (in order) whose gradient is not finite, or the loss; the parameters and
/// the optimizer's state are then unchanged.
StepResult train_step(const LossAndGradients& loss_and_gradients, std::span<const Batch> microbatches,
                      Optimizer& optimizer, const StepOptions& options, RankContext& rank);
StepResult train_step(Decoder& model, std::span<const Batch> microbatches, Optimizer& optimizer,
                      const StepOptions& options, RankContext& rank);

/// The step `options.step` of `batches`.
StepResult train_step(Decoder& model, const Batches& batches, Optimizer& optimizer, const StepOptions& options,
                      RankContext& rank);

/// Every trainable parameter of `model`, in its order.
std::vector<Parameter*> trainable_parameters(Decoder& model);

}  // namespace nibble
