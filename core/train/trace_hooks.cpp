#include "nibble/core/train/trace_hooks.h"

namespace nibble {

void TraceHooks::begin(Phase phase, int64_t layer) {
  if (!trace_) return;
  const std::string name = layer < 0         ? "embeddings"
                           : layer < layers_ ? "layer " + std::to_string(layer)
                                             : "head and loss";
  span_ = trace_->begin(phase, name);
}

void TraceHooks::end() {
  if (trace_) trace_->end(span_);
}

}  // namespace nibble
