#pragma once
// Final norm, head and cross-entropy in chunks of tokens, so that whole logits never exist.

#include <functional>

#include "nibble/core/models/batch.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/norm.h"

namespace nibble {

/// The end of a Decoder.
struct DecoderHead {
  Norm norm;
  Linear linear;      ///< [V, D]; a tied one holds the embedding's parameter
  float softcap = 0;  ///< of the logits, 0 = off

  /// Rows computed at a time: about 32 MiB of f32 logits, but enough that a product reads the weight to some effect.
  int64_t chunk_rows() const;

  /// Calls sink(first row, logits [n, V] f32) for the chunks of hidden [N, D] f32 in order.
  void logits(const Tensor& hidden, const StepContext& step,
              const std::function<void(int64_t row, const Tensor& logits)>& sink);

  /// Sum of the cross-entropy over the tokens that have a label, from the residual stream hidden [T, D] f32. With
  /// gradients, the head's own gradients are accumulated; hidden_gradient [T, D] f32, unless null, += gradient of
  /// hidden. Both times gradient_scale. Throws InputError for a label outside [0, V).
  double loss_sum(const Tensor& hidden, const Batch& batch, const StepContext& step, bool gradients,
                  float gradient_scale, Tensor* hidden_gradient);
};

}  // namespace nibble
