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
  bool updated = true;  ///< false when no token of the step has a label, or of a bad step: nothing was changed
  /// Bad step: what is not finite, beginning with the first in the order parameters, gradients, loss ("gradient of
  /// model.layers.0...lora_B.weight, element 3 of 512, is nan"). Empty: all is finite.
  std::vector<std::string> nonfinite;
};

/// Sum of the loss over one microbatch, and gradient_scale times its gradient added to the parameters:
/// Decoder::loss_sum_and_gradients, or what a pipeline does instead.
using LossAndGradients = std::function<double(const Batch& microbatch, const StepContext& step, float gradient_scale)>;

/// How the work of a step is spread over ranks. What is empty is done as one rank does it.
struct StepLayout {
  /// counts [2] f64, label tokens and tokens of this rank's microbatches, become those of the step.
  std::function<void(Tensor& counts)> sum_counts;
  /// What sum_gradients does, over the microbatches of all ranks: afterwards the gradients this rank optimizes are
  /// complete, and the loss returned is that of the step. run(i) is the i-th microbatch of this rank; it may be called
  /// for numbers beyond the last, which take part in exchanges only.
  std::function<double(GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                       const std::function<double(int64_t)>& run)>
      sum_gradients;
  /// Called for a microbatch without label tokens, or beyond the last.
  std::function<void()> idle;
  /// Sum of the squares of all gradients on all ranks, each counted once, in the model's order.
  std::function<double(const std::vector<Parameter*>& parameters)> squares;
  /// After the update: what the ranks updated apart is brought together.
  std::function<void()> after_update;
};

/// Zeroes the gradients, runs all microbatches, clips, updates.
/// Loss and gradients are sums over tokens, divided once by the number of label tokens of all microbatches and ranks,
/// which is agreed before the first forward; so k microbatches give what one large batch gives.
/// Clipping is torch.nn.utils.clip_grad_norm_: gradients are multiplied by min(1, max_grad_norm / (norm + 1e-6)); the
/// norm is summed in f64 in a fixed order.
/// Where the loss, or the gradient of a tensor of any rank, is not finite, no rank updates anything: see
/// StepResult::nonfinite. Run::log decides what follows.
StepResult train_step(const LossAndGradients& loss_and_gradients, std::span<const Batch> microbatches,
                      Optimizer& optimizer, const StepOptions& options, RankContext& rank,
                      const StepLayout& layout = {});
StepResult train_step(Decoder& model, std::span<const Batch> microbatches, Optimizer& optimizer,
                      const StepOptions& options, RankContext& rank);

/// The step `options.step` of `batches`.
StepResult train_step(Decoder& model, const Batches& batches, Optimizer& optimizer, const StepOptions& options,
                      RankContext& rank);

/// Sum of the squares of the gradients in f64, in order.
double gradient_squares(const std::vector<Parameter*>& parameters);

/// Every trainable parameter of `model`, in its order.
std::vector<Parameter*> trainable_parameters(Decoder& model);

}  // namespace nibble
