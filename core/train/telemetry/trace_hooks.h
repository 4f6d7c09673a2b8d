#pragma once
// The layers of a Decoder in a trace.

#include <string>

#include "nibble/core/nn/hooks.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

/// Spans around the embeddings, every layer, and the head with the loss (see Decoder::set_hooks for their numbers).
/// What the hooks of a parallel model exchange before, in and after a layer is communication. Without a trace only the
/// other hooks are called.
class TraceHooks final : public BlockHooks {
 public:
  /// layers: of the whole model; exchange: the hooks of a parallel model, null for one rank.
  TraceHooks(Trace* trace, int64_t layers, BlockHooks* exchange = nullptr)
      : trace_(trace), layers_(layers), exchange_(exchange) {}

  void before_forward(int64_t layer) override;
  void after_forward(int64_t layer) override;
  /// The head's loss and its gradient are computed together, and count as forward.
  void before_backward(int64_t layer) override;
  void after_backward(int64_t layer) override;

 private:
  void begin(Phase phase, int64_t layer);
  void end();

  Trace* trace_;
  int64_t layers_;
  BlockHooks* exchange_;
  uint64_t span_ = 0;
};

}  // namespace nibble
