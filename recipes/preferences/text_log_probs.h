#pragma once
// What a model says of texts, all of it and not only its loss: computed in batches that the data ranks share.

#include <functional>
#include <span>
#include <vector>

#include "nibble/core/train/step_executor.h"

namespace nibble {

/// How log-probabilities are computed, as training's own forward passes do it.
struct LogProbPass {
  DType compute_dtype = DType::f32;
  bool adapters_enabled = true;  ///< false: the base without them
  int64_t batch_tokens = 2048;   ///< of texts that are computed together
  double temperature = 1;        ///< see Objective::temperature
  bool scores = false;           ///< what a score head of one label says of each token instead
  /// Asked by all ranks before every batch, with the values so far: false ends the pass, which returns these.
  std::function<bool(std::span<const float> values)> go_on;
};

/// Log-probabilities (or scores) of the labelled tokens of texts, one after another as `begins` says: text d has
/// begins[d + 1] - begins[d] tokens; 0 where a token has no label. The batches do not depend on the number of ranks;
/// all of them get the result. text: asked for those that this rank computes. begun: what an earlier pass returned that
/// go_on ended, the same on all ranks; where it does not end with a batch, all is computed anew.
std::vector<float> text_log_probs(StepExecutor& executor, const std::vector<size_t>& begins,
                                  const std::function<Sample(size_t)>& text, const LogProbPass& pass,
                                  std::vector<float> begun = {});

}  // namespace nibble
