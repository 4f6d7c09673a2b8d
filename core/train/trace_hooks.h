#pragma once
// The layers of a Decoder in a trace.

#include "nibble/core/base/trace.h"
#include "nibble/core/nn/hooks.h"

namespace nibble {

/// Spans around every layer, and around what lies between the last layer's forward and its backward: head and loss.
/// Calls `next` as well, if there is one. Does nothing else without a trace.
class TraceHooks final : public BlockHooks {
 public:
  TraceHooks(Trace* trace, int64_t layers, BlockHooks* next = nullptr)
      : trace_(trace), last_(layers - 1), next_(next) {}

  void before_forward(int64_t layer) override;
  void after_forward(int64_t layer) override;
  void before_backward(int64_t layer) override;
  void after_backward(int64_t layer) override;

 private:
  Trace* trace_;
  int64_t last_;
  BlockHooks* next_;
  uint64_t layer_ = 0, head_ = 0;  // spans
};

}  // namespace nibble
