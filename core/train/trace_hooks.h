#pragma once
// The layers of a Decoder in a trace.

#include <string>

#include "nibble/core/base/trace.h"
#include "nibble/core/nn/hooks.h"

namespace nibble {

/// Spans around the embeddings, every layer, and the head with the loss (see Decoder::set_hooks for their numbers).
/// Does nothing without a trace.
class TraceHooks final : public BlockHooks {
 public:
  /// layers: of the whole model.
  TraceHooks(Trace* trace, int64_t layers) : trace_(trace), layers_(layers) {}

  void before_forward(int64_t layer) override { begin(Phase::forward, layer); }
  void after_forward(int64_t) override { end(); }
  /// The head's loss and its gradient are computed together, and count as forward.
  void before_backward(int64_t layer) override { begin(layer == layers_ ? Phase::forward : Phase::backward, layer); }
  void after_backward(int64_t) override { end(); }

 private:
  void begin(Phase phase, int64_t layer);
  void end();

  Trace* trace_;
  int64_t layers_;
  uint64_t span_ = 0;
};

}  // namespace nibble
